"""Stored messages of a cluster, by unique id, key or offset message id."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from duemq.client.admin.groups import GroupsAdmin
from duemq.client.errors import NoRoute
from duemq.client.message import MessageQueue, ReceivedMessage, milliseconds
from duemq.client.routes import bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from message_store.log.offset_id import decode_offset_id
from message_store.log.record import split_records

QUERY_COUNT: Final = 32  # messages of a broker by one unique id
KEY_COUNT_MAX: Final = 64  # maxNum that all brokers accept
TIME_MS_MAX: Final = (1 << 63) - 1


class MessagesAdmin(GroupsAdmin):
    """Requests about stored messages."""

    async def message_at(self, offset_message_id: str) -> ReceivedMessage | None:
        """Return the message with an offset message id; None: the broker no longer has it.

        The id names the broker; with the address of one broker, that one is used.

        Raises:
            ValueError: The id is malformed.
            Unreachable: The broker does not respond.
        """
        host, port, offset = decode_offset_id(offset_message_id)
        address = self.client.broker or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        code = RequestCode.VIEW_MESSAGE_BY_ID
        response = await self.client.call(address, code, {"offset": offset})
        if response.code == ResponseCode.NO_PERMISSION:
            raise self.client.refusal(response, address, code)
        if response.code != ResponseCode.SUCCESS:
            return None
        records = split_records(bytes_of(response))
        if not records:
            return None
        [record] = records
        return ReceivedMessage(record, MessageQueue(record.topic, "", record.queue_id))

    async def messages_by_id(self, topic: str, unique_id: str) -> list[ReceivedMessage]:
        """Return the stored messages with a unique id, oldest first.

        Raises:
            NoRoute: The topic does not exist.
            Refused: A broker refused the query.
        """
        messages = await self._query(topic, unique_id, 0, TIME_MS_MAX, QUERY_COUNT, unique=True)
        return _sorted(messages, lambda message: message.message_id == unique_id)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        count: int = KEY_COUNT_MAX,
    ) -> list[ReceivedMessage]:
        """Return the newest stored messages with a key, oldest first.

        Args:
            since, until: Range of the store time.
            count: Maximum number of messages of each broker.
        Raises:
            NoRoute: The topic does not exist.
            Refused: A broker refused the query.
        """
        since_ms = milliseconds(since) if since else 0
        until_ms = milliseconds(until) if until else TIME_MS_MAX
        messages = await self._query(topic, key, since_ms, until_ms, count, unique=False)
        return _sorted(messages, lambda message: key in message.keys)

    async def _query(
        self, topic: str, key: str, since_ms: int, until_ms: int, count: int, *, unique: bool
    ) -> list[ReceivedMessage]:
        route = await self.client.fetch_route(topic)
        if route is None:
            raise NoRoute(f"topic {topic} does not exist")
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": count,
            "beginTimestamp": since_ms,
            "endTimestamp": until_ms,
            "_UNIQUE_KEY_QUERY": unique,
        }
        messages: list[ReceivedMessage] = []
        code = RequestCode.QUERY_MESSAGE
        for broker_name in route.addresses:
            address = route.any_member(broker_name)
            response = await self.client.call(address, code, fields)
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            if response.code != ResponseCode.SUCCESS:
                raise self.client.refusal(response, address, code)
            messages += [
                ReceivedMessage(record, MessageQueue(topic, broker_name, record.queue_id))
                for record in split_records(bytes_of(response))
            ]
        return messages


def _sorted(
    messages: list[ReceivedMessage], matches: Callable[[ReceivedMessage], bool]
) -> list[ReceivedMessage]:
    """Return the messages that match, oldest first: an index has hashes of keys only."""
    return sorted(filter(matches, messages), key=lambda message: message.stored_at)
