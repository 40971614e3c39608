"""Messages of a cluster by unique id, key or offset message id: stored ones, and their histories.

DueMQ's brokers return the history of a message. Apache's brokers return its record only, by offset
message id, or by unique id or key and topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from duemq.client.admin.cluster import BrokerMember, parsed
from duemq.client.admin.groups import GroupsAdmin
from duemq.client.errors import NoRoute, Unsupported
from duemq.client.message import MessageQueue, ReceivedMessage
from duemq_common.bodies.histories import (
    HistoryRequest,
    HistoryResponse,
    HistoryStep,
    MessageHistory,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import bytes_of
from duemq_common.topics import PENDING_TOPICS
from message_store.log.offset_id import decode_offset_id, encode_offset_id
from message_store.log.record import Record, split_records

QUERY_COUNT: Final = 32  # messages of a broker by one name
TIME_MS_MAX: Final = (1 << 63) - 1
RECORD_ONLY: Final = "the broker is not a DueMQ broker: it returns one record, without a history"


@dataclass(frozen=True, slots=True)
class MessageHistories:
    """Messages of a name and their histories.

    Attributes:
        messages: The newest messages of each broker, at most 32, newest last.
        more: Whether a broker has older messages of the name.
        pops_omitted: Whether a broker did not examine its oldest pops.
    """

    messages: list[MessageHistory]
    more: bool = False
    pops_omitted: bool = False


class MessagesAdmin(GroupsAdmin):
    """Requests about messages."""

    async def message_history(
        self, name: str, *, topic: str = "", brokers: Sequence[str] = ()
    ) -> MessageHistories:
        """Return the messages of a name in any state, with their histories.

        Every master is asked at the same time, once.

        Args:
            name: Unique id, one of the keys, or offset message id.
            topic: Topic of the messages; empty: any. Apache's brokers need it, unless the name is
                an offset message id.
            brokers: Broker names; none: all.
        Raises:
            Refused: A broker refused the request.
            Unreachable: A broker does not respond.
        """
        masters = await self.masters(brokers)
        answers = await asyncio.gather(*(self._histories_at(each, name, topic) for each in masters))
        return MessageHistories(
            [message for answer in answers for message in answer.messages],
            more=any(answer.more for answer in answers),
            pops_omitted=any(answer.pops_omitted for answer in answers),
        )

    async def _histories_at(self, master: BrokerMember, name: str, topic: str) -> HistoryResponse:
        body = msgspec.json.encode(HistoryRequest(name, topic))
        code = RequestCode.FIND_MESSAGE
        try:
            response = await self.ask_broker(master.address, code, body=body, feature="histories")
            answer = parsed(response, HistoryResponse)
        except Unsupported:
            records = await self._records_at(master.address, name, topic)
            answer = HistoryResponse([_history_of(record) for record in records])
        for message in answer.messages:
            message.broker = master.name
        return answer

    async def _records_at(self, address: str, name: str, topic: str) -> list[Record]:
        """Return the records of a name at an Apache broker; none if it cannot look them up."""
        if topic:
            fields = _query_fields(topic, name, unique=False)
            response = await self.client.call(address, RequestCode.QUERY_MESSAGE, fields)
        else:
            try:
                _, _, offset = decode_offset_id(name)
            except (ValueError, OverflowError):
                return []
            code = RequestCode.VIEW_MESSAGE_BY_ID
            response = await self.client.call(address, code, {"offset": offset})
        if response.code != ResponseCode.SUCCESS:
            return []
        records = split_records(bytes_of(response))
        return [record for record in records if not topic or name in _names_of(record)]

    async def messages_by_id(self, topic: str, unique_id: str) -> list[ReceivedMessage]:
        """Return the stored messages with a unique id, oldest first.

        Raises:
            NoRoute: The topic does not exist.
            Refused: A broker refused the query.
        """
        route = await self.client.fetch_route(topic)
        if route is None:
            raise NoRoute(f"topic {topic} does not exist")
        messages: list[ReceivedMessage] = []
        for broker_name in route.addresses:
            address = route.any_member(broker_name)
            messages += [
                ReceivedMessage(record, MessageQueue(topic, broker_name, record.queue_id))
                for record in await self.records_by_id(address, topic, unique_id)
            ]
        return sorted(messages, key=lambda message: message.stored_at)

    async def records_by_id(self, address: str, topic: str, unique_id: str) -> list[Record]:
        """Return the records of a topic with a unique id at one broker.

        Raises:
            Refused: The broker refused the query.
        """
        code = RequestCode.QUERY_MESSAGE
        fields = _query_fields(topic, unique_id, unique=True)
        response = await self.client.call(address, code, fields)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)
        records = split_records(bytes_of(response))
        return [one for one in records if one.properties.get("UNIQ_KEY") == unique_id]


def _query_fields(topic: str, key: str, *, unique: bool) -> dict[str, object]:
    return {
        "topic": topic,
        "key": key,
        "maxNum": QUERY_COUNT,
        "beginTimestamp": 0,
        "endTimestamp": TIME_MS_MAX,
        "_UNIQUE_KEY_QUERY": unique,
    }


def _names_of(record: Record) -> set[str]:
    properties = record.properties
    return {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")}


def _history_of(record: Record) -> MessageHistory:
    """Return what the record of an Apache broker says of its message."""
    properties, is_delayed = record.properties, record.topic in PENDING_TOPICS
    event = "scheduled" if is_delayed else "stored"
    step = HistoryStep(
        event=event,
        commit_log_offset=record.phys_offset,
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        store_ms=record.store_ms,
        size=record.total_size,
    )
    return MessageHistory(
        state="unknown" if is_delayed else "stored",
        reason=RECORD_ONLY,
        topic=properties.get("REAL_TOPIC", record.topic),
        queue_id=record.queue_id,
        born_ms=record.born_ms,
        stored_ms=record.store_ms,
        offset_message_id=encode_offset_id(*record.store_host, record.phys_offset),
        unique_key=properties.get("UNIQ_KEY"),
        keys=properties.get("KEYS"),
        tags=properties.get("TAGS"),
        properties=properties,
        body=record.body,
        body_bytes=len(record.body),
        records=[step],
    )
