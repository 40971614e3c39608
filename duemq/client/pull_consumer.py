"""Pull consumer: reads queues at offsets that the application chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Unpack

from duemq.client.errors import NoRoute, Refused, Unreachable
from duemq.client.filters import Filter
from duemq.client.message import MessageQueue, ReceivedMessage, milliseconds
from duemq.client.role import ClientOptions, ClientRole
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response, bytes_of
from message_store.log.record import split_records

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4  # bits of a pull's sysFlag. PullSysFlag
PULL_COUNT: Final = 32  # messages of one response
PULL_BYTES_MAX: Final = 262_144
PULLED: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@dataclass(frozen=True, slots=True)
class Pulled:
    """Result of a pull.

    Attributes:
        messages: Messages that pass the filter, in order; may be empty.
        next_offset: Offset of the next pull.
        min_offset, max_offset: Range of the queue; `max_offset` is one after the last message.
        moved: Whether the queue does not have the offset of the pull: it was before the first or
            after the last message, or the group was reset.
    """

    messages: Sequence[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool = False


class PullConsumer(ClientRole):
    """Reader of queues; an async context manager.

    Args:
        namesrv, options: As in `ClientRole`.
        group: Consumer group whose offsets are read and committed.
    """

    def __init__(self, namesrv: str = "", *, group: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(namesrv, **options)
        self.group = group

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic, in order.

        Raises:
            NoRoute: The topic does not exist.
        """
        route = await self.client.fetch_route(topic)
        if route is None:
            raise NoRoute(f"topic {topic} does not exist")
        return route.read_queues

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int = PULL_COUNT,
        wait_s: float = 0,
        only: Filter | str = "",
        commit_offset: int | None = None,
    ) -> Pulled:
        """Return messages of a queue from an offset on.

        Args:
            count: Maximum number of messages; a response has 32 at most.
            wait_s: Time to wait for a message at the end of the queue, in seconds.
            only: Filter, or the expression of tags.
            commit_offset: Offset to commit for the group with the pull.
        Raises:
            Refused: The broker refused the pull.
            Unreachable: The broker does not respond.
        """
        messages = only if isinstance(only, Filter) else Filter(only)
        fields = {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": offset,
            "maxMsgNums": count,
            "sysFlag": SUBSCRIPTION
            | (SUSPEND if wait_s > 0 else 0)
            | (COMMIT if commit_offset is not None else 0),
            "commitOffset": commit_offset or 0,
            "suspendTimeoutMillis": int(wait_s * 1_000),
            "subscription": messages.expression or "*",
            "subVersion": 0,
            "expressionType": messages.kind,
            "maxMsgBytes": PULL_BYTES_MAX,
        }
        code, timeout_s = RequestCode.PULL_MESSAGE, self.client.timeout_s + wait_s
        response, address = await self._call(queue, code, fields, timeout_s)
        if response.code not in PULLED:
            raise self.client.refusal(response, address, code)
        return pulled(response, queue, messages, offset)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None: there is none."""
        code = RequestCode.QUERY_CONSUMER_OFFSET
        response, address = await self._call(queue, code, self._fields(queue))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return self._offset(response, address, code)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the offset of the next message that the group will read."""
        fields = self._fields(queue) | {"commitOffset": offset}
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        response, address = await self._call(queue, code, fields)
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message of a queue."""
        return await self._ask_offset(queue, RequestCode.GET_MIN_OFFSET)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message of a queue."""
        return await self._ask_offset(queue, RequestCode.GET_MAX_OFFSET)

    async def offset_at(self, queue: MessageQueue, when: datetime) -> int:
        """Return the offset of the first message stored at or after a time.

        Raises:
            ValueError: The time has no zone.
        """
        if when.tzinfo is None:
            raise ValueError(f"the time {when.isoformat()} has no time zone")
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return await self._ask_offset(queue, code, timestamp=milliseconds(when))

    async def _ask_offset(self, queue: MessageQueue, code: int, **more: object) -> int:
        fields = {"topic": queue.topic, "queueId": queue.queue_id, **more}
        response, address = await self._call(queue, code, fields)
        return self._offset(response, address, code)

    def _offset(self, response: Response, address: str, code: int) -> int:
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)
        try:
            return int((response.fields or {})["offset"])
        except (KeyError, ValueError):
            raise Refused(response.code, "the response has no offset", address) from None

    async def _call(
        self,
        queue: MessageQueue,
        code: int,
        fields: Mapping[str, object],
        timeout_s: float | None = None,
    ) -> tuple[Response, str]:
        """Return the response of the broker of a queue, and its address.

        A broker that does not respond is looked up again by the next call.
        """
        route = await self.client.route(queue.topic)
        address = route.any_member(queue.broker_name)
        if not address:
            self.client.expire_route(queue.topic)
            raise NoRoute(f"broker {queue.broker_name} of topic {queue.topic} has no address")
        try:
            return await self.client.call(address, code, fields, timeout_s=timeout_s), address
        except Unreachable:
            self.client.expire_route(queue.topic)
            raise

    def _fields(self, queue: MessageQueue) -> dict[str, object]:
        return {
            "consumerGroup": self.group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
        }


def pulled(response: Response, queue: MessageQueue, messages: Filter, offset: int) -> Pulled:
    """Return the result in the response to a pull.

    Raises:
        RecordUnreadable: A record is damaged.
    """
    fields = response.fields or {}
    records = split_records(bytes_of(response)) if response.code == ResponseCode.SUCCESS else []
    tags = messages.tags
    return Pulled(
        [
            ReceivedMessage(record, queue)
            for record in records
            if not tags or record.properties.get("TAGS", "") in tags
        ],
        int(fields.get("nextBeginOffset", offset)),
        int(fields.get("minOffset", 0)),
        int(fields.get("maxOffset", 0)),
        response.code == ResponseCode.PULL_OFFSET_MOVED,
    )
