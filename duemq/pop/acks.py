"""Acknowledgements (200051, 200151) and changes of invisible times (200053).

    200051, 200151  handle --parse, check--> acknowledgement, due at the revive time
    200053          handle --parse, check--> new checkpoint of the message
                                             + acknowledgement of the old checkpoint, in one batch

Source: AckMessageProcessor, ChangeInvisibleTimeProcessor
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from duemq.net import fields, wire_json
from duemq.net.dispatcher import CheckedHandler, Handler
from duemq.net.retry_topics import topic_of_flag
from duemq.pop.checkpoints import (
    INVISIBLE_MS_MAX,
    OFFSETS_MAX,
    AckEntry,
    Acknowledgement,
    PopCheckpoint,
    is_ahead,
)
from duemq.pop.names import ORDER_QUEUE
from duemq.pop.order_info import Settled
from duemq.pop.orderly import Orderly
from duemq.pop.pop_offsets import GroupQueue, PopOffsets
from duemq.pop.receipts import (
    NUMBER_DIGITS_MAX,
    Receipt,
    ReceiptError,
    check_revive_queue,
    parse_receipt,
)
from duemq.pop.revive_log import ReviveLog
from duemq.registry.internal_topics import check_readable
from duemq.registry.managers import Identity
from duemq.registry.topics import TopicManager
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

if TYPE_CHECKING:
    from message_store.store import MessageStore

ENTRIES_MAX: Final = 1_024  # per batch acknowledgement
BODY_BYTES_MAX: Final = 1 << 20


class AckProcessor:
    """Handlers of 200051, 200151 and 200053.

    Args:
        serves: Returns the reason why the broker does not serve POP; empty: POP is served.
        open_until_ms: Returns the time from which a popped message is visible; None: it is
            acknowledged, or visible.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        offsets: PopOffsets,
        revive_log: ReviveLog,
        orderly: Orderly,
        identity: Identity,
        clock: Clock,
        serves: Callable[[], str],
        open_until_ms: Callable[[PopCheckpoint, int], int | None],
    ) -> None:
        self._store, self._topics, self._revive_log = store, topics, revive_log
        self._offsets, self._orderly = offsets, orderly
        self._identity, self._clock, self._serves = identity, clock, serves
        self._open_until_ms = open_until_ms

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.acknowledge,
            RequestCode.BATCH_ACK_MESSAGE: CheckedHandler(
                self.acknowledge_batch, body_bytes_max=BODY_BYTES_MAX
            ),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible_time,
        }

    async def acknowledge(self, request: Request) -> Response:
        """Append the acknowledgement of one message (200051)."""
        entry = self.admit(request)
        if entry is not None:
            revive_queue, record = entry
            await self._revive_log.acknowledge(revive_queue, record)
            await self._revive_log.confirm("the message was acknowledged")
        return Response()

    def admit(self, request: Request) -> AckEntry | None:
        """Check an acknowledgement and return its record.

        Returns:
            None for an orderly pop: its acknowledgement is applied here and has no record.
        Raises:
            RequestError: The request is invalid, or names a message that does not exist.
        """
        group, topic, queue_id, offset = self._message(request)
        self._check_offset(topic, queue_id, offset, end_is_valid=True)
        receipt = self._receipt(request)
        if receipt.is_orderly:
            self._acknowledge_orderly(GroupQueue(group, topic, queue_id), offset, receipt.pop_ms)
            return None
        return _acknowledgement(group, topic, queue_id, offset, receipt)

    def queue_count(self, topic: str) -> int:
        """Return the number of read queues of a topic; 0 if the topic does not exist."""
        config = self._topics.find(topic)
        return 0 if config is None else config.read_queues

    def valid_offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the lowest and the highest queue offset that can be acknowledged now.

        Raises:
            RequestError: The queue does not exist, or the broker does not serve POP.
        """
        self._check_service()
        self._check_queue(topic, queue_id)
        return self._store.queue_bounds(topic, queue_id)

    async def change_invisible_time(self, request: Request) -> Response:
        """Set a new invisible time of one message, counted from now (200053).

        With the field `suspend` of Apache 5.4, the message is then visible again without a counted
        retry. In an orderly pop the field has no effect, as with Apache.

        Raises:
            RequestError: The request is invalid; NO_MESSAGE: the old invisible time has expired.
        """
        group, topic, queue_id, offset = self._message(request)
        invisible_ms = fields.long(request, "invisibleTime")
        self._check_offset(topic, queue_id, offset, end_is_valid=False)
        receipt, now_ms = self._receipt(request), self._clock.now_ms()
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise _invalid(
                f"invisibleTime is {invisible_ms}; the valid range is 0 to {INVISIBLE_MS_MAX} ms"
            )
        if receipt.is_orderly:
            return self._change_orderly(
                GroupQueue(group, topic, queue_id), offset, receipt, now_ms + invisible_ms
            )
        self._check_topic(GroupQueue(group, topic, queue_id), offset, receipt.pop_ms)
        self._check_invisible(GroupQueue(group, topic, queue_id), offset, receipt, now_ms)
        is_stepped = is_ahead(receipt.pop_ms, now_ms)
        # The new checkpoint needs a key of its own.
        pop_ms = now_ms if is_stepped else max(now_ms, receipt.pop_ms + 1)
        invisible_ms = max(invisible_ms - (pop_ms - now_ms), 0)
        renewed = PopCheckpoint(
            topic=topic,
            group=group,
            queue_id=queue_id,
            start_offset=offset,
            pop_ms=pop_ms,
            invisible_ms=invisible_ms,
            offsets=(offset,),
            broker_name=self._identity.broker_name,
            suspended=fields.boolean(request, "suspend"),
        )
        acknowledged = _acknowledgement(group, topic, queue_id, offset, receipt)
        self._revive_log.put([(receipt.revive_queue, renewed), acknowledged])
        await self._revive_log.confirm("the invisible time was changed")
        return Response(
            fields={
                "popTime": str(pop_ms),
                "invisibleTime": str(invisible_ms),
                "reviveQid": str(receipt.revive_queue),
            }
        )

    def _acknowledge_orderly(self, queue: GroupQueue, offset: int, pop_ms: int) -> None:
        """Acknowledge a message of the last orderly pop of a queue.

        Messages before the committed offset are acknowledged already: nothing changes.

        Raises:
            RequestError: MESSAGE_ILLEGAL: the last pop of the queue did not return the message.
        """
        if offset < self._offsets.committed(queue):
            return
        following = self._orderly.table.acknowledge(queue, offset, pop_ms)
        if following is Settled.ILLEGAL:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{queue.topic}@{queue.group}@{queue.queue_id}, "
                f"commit:{offset}: the last pop of the queue did not return this message",
            )
        if not isinstance(following, Settled):
            self._offsets.acknowledged(queue, following)
            self._orderly.changed(queue)

    def _change_orderly(
        self, queue: GroupQueue, offset: int, receipt: Receipt, visible_ms: int
    ) -> Response:
        """Set the time at which a message of the last orderly pop is visible again."""
        if offset >= self._offsets.committed(queue) and self._orderly.table.set_visible(
            queue, offset, receipt.pop_ms, visible_ms
        ):
            self._orderly.changed(queue)
        return Response(
            fields={
                "popTime": str(receipt.pop_ms),
                "invisibleTime": str(visible_ms - receipt.pop_ms),
                "reviveQid": str(receipt.revive_queue),
            }
        )

    async def acknowledge_batch(self, request: Request) -> Response:
        """Append the acknowledgements of messages from several pops (200151)."""
        entries: list[AckEntry] = []
        for each in batch_entries(request.body):
            entry = self._batch_entry(each)
            if entry is not None:
                entries.append(entry)
        if entries:
            self._check_service()
            self._revive_log.put(entries)
            await self._revive_log.confirm("the messages were acknowledged")
        return Response()

    # -- checks ---------------------------------------------------------------------------------

    def _message(self, request: Request) -> tuple[str, str, int, int]:
        """Return the group, topic, queue and queue offset of a request.

        Raises:
            RequestError: A field is missing or invalid, the queue does not exist, or the broker
                does not serve POP.
        """
        group, topic = fields.text(request, "consumerGroup"), fields.text(request, "topic")
        queue_id, offset = fields.integer(request, "queueId"), fields.long(request, "offset")
        fields.text(request, "extraInfo")
        self._check_service()
        self._check_queue(topic, queue_id)
        return group, topic, queue_id, offset

    def _check_service(self) -> None:
        if reason := self._serves():
            raise RequestError(ResponseCode.NO_PERMISSION, reason)

    def _check_queue(self, name: str, queue_id: int) -> None:
        topic = self._topics.find(name)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        check_readable(name)
        if not 0 <= queue_id < topic.read_queues:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}]",
            )

    def _check_offset(self, topic: str, queue_id: int, offset: int, *, end_is_valid: bool) -> None:
        low, high = self._store.queue_bounds(topic, queue_id)
        if not low <= offset < high + end_is_valid:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )

    def _check_invisible(
        self, queue: GroupQueue, offset: int, receipt: Receipt, now_ms: int
    ) -> None:
        """Check that a popped message is not visible again.

        If its invisible time is over, as after a stall, or if the clock was set back since the pop,
        the reviver knows whether its pop is decided.

        Raises:
            RequestError: NO_MESSAGE: the message is visible again, or acknowledged.
        """
        if receipt.visible_ms > now_ms and not is_ahead(receipt.pop_ms, now_ms):
            return
        popped = PopCheckpoint(
            topic=queue.topic,
            group=queue.group,
            queue_id=queue.queue_id,
            start_offset=receipt.start_offset,
            pop_ms=receipt.pop_ms,
            invisible_ms=receipt.invisible_ms,
            offsets=(offset,),
            broker_name=receipt.broker_name,
        )
        if self._open_until_ms(popped, offset) is not None:
            return
        message = f"message {offset} of {queue.topic}/{queue.queue_id}"
        if receipt.visible_ms <= now_ms:
            text = (
                f"the receipt handle of {message} expired {now_ms - receipt.visible_ms} ms ago: "
                f"the message is visible again"
            )
        else:
            text = (
                f"the clock was set back since the pop of {message}, which is acknowledged, or "
                f"visible again"
            )
        raise RequestError(ResponseCode.NO_MESSAGE, text)

    def _check_topic(self, queue: GroupQueue, offset: int, pop_ms: int) -> None:
        """Check that the topic was not deleted and created again since a pop.

        A group that has not popped the message of the new topic has the receipt of the deleted
        one. Otherwise times decide.

        Raises:
            RequestError: NO_MESSAGE: the message was stored after the pop.
        """
        topic, queue_id = queue.topic, queue.queue_id
        if not self._store.queues.deletions.before(topic):
            return
        units = self._store.units(topic, queue_id, offset, 1)
        is_popped = offset < (self._offsets.popped(queue) or 0)
        if units.size and not (
            is_popped and self._store.store_ms(int(units[0]["phys_offset"])) <= pop_ms
        ):
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"message {offset} of {topic}/{queue_id} was stored after the pop: the topic was "
                f"deleted and created again",
            )

    def _receipt(self, request: Request) -> Receipt:
        """Return the parsed receipt handle of a request.

        Raises:
            RequestError: INVALID_PARAMETER: the handle is malformed or of another broker.
        """
        try:
            receipt = parse_receipt(fields.text(request, "extraInfo"), self._identity.broker_name)
        except ReceiptError as error:
            raise _invalid(f"extraInfo is not a valid receipt handle: {error}") from error
        return receipt

    def _batch_entry(self, each: Mapping[str, object]) -> AckEntry | None:
        """Return the acknowledgement for an entry of a batch.

        Returns:
            None if the entry needs no record: none of its messages exists, or the pop was orderly.
        Raises:
            RequestError: The entry is malformed, or its queue does not exist.
        """
        try:
            group = str(_value(each, "c", "consumerGroup"))
            topic = topic_of_flag(
                str(_value(each, "t", "topic")), group, str(_value(each, "r", "retry"))
            )
            queue_id, start = _number(each, "q", "queueId"), _number(each, "so", "startOffset")
            revive_queue = _number(each, "rq", "reviveQueueId")
            due_ms = (pop_ms := _number(each, "pt", "popTime")) + _number(
                each, "it", "invisibleTime"
            )
            check_revive_queue(revive_queue)
            offsets = bit_offsets(_value(each, "b", "bitSet"), start)
        except ValueError as error:
            raise _invalid(f"an entry of the batch is malformed: {error}") from error
        self._check_queue(topic, queue_id)
        low, high = self._store.queue_bounds(topic, queue_id)
        kept = tuple(offset for offset in offsets if low <= offset <= high)
        if revive_queue == ORDER_QUEUE:
            self._check_service()
            for offset in kept:
                self._acknowledge_orderly(GroupQueue(group, topic, queue_id), offset, pop_ms)
            return None
        if not kept:
            return None
        return revive_queue, Acknowledgement(
            topic=topic,
            group=group,
            queue_id=queue_id,
            start_offset=start,
            pop_ms=pop_ms,
            offsets=kept,
            broker_name=self._identity.broker_name,
            due_ms=due_ms,
        )


def _acknowledgement(
    group: str, topic: str, queue_id: int, offset: int, receipt: Receipt
) -> AckEntry:
    return receipt.revive_queue, Acknowledgement(
        topic=topic,
        group=group,
        queue_id=queue_id,
        start_offset=receipt.start_offset,
        pop_ms=receipt.pop_ms,
        offsets=(offset,),
        broker_name=receipt.broker_name,
        due_ms=receipt.visible_ms,
    )


def batch_entries(body: bytes) -> Iterator[Mapping[str, object]]:
    """Yield the entries of a batch acknowledgement.

    Raises:
        RequestError: NO_MESSAGE: the batch is empty; INVALID_PARAMETER: the body is malformed.
    """
    try:
        entries = wire_json.parse_object(body).get("acks")
    except ValueError as error:
        raise _invalid(f"the body is malformed: {error}") from error
    if not entries:
        raise RequestError(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
    if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
        raise _invalid(f"acks must be a list of at most {ENTRIES_MAX} entries")
    for entry in entries:
        if not isinstance(entry, dict):
            raise _invalid("an entry of the batch is not an object")
        yield entry


def bit_offsets(value: object, start: int) -> tuple[int, ...]:
    """Return the offsets whose bits are set; bit 0 is `start`.

    Args:
        value: Bytes of a Java BitSet: as base64, or as a list of numbers from -128 to 255.
        start: Queue offset of bit 0.
    Returns:
        Queue offsets, ascending.
    Raises:
        ValueError: The value has another form, or more than `OFFSETS_MAX` bits.
    """
    if isinstance(value, str):
        try:
            data = base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the bits are not base64: {error}") from error
    elif isinstance(value, list) and all(isinstance(each, int) for each in value):
        data = bytes(each & 0xFF for each in value)
    else:
        raise ValueError("the bits are neither base64 nor a list of numbers")
    if len(data) * 8 > OFFSETS_MAX:
        raise ValueError(f"the bit set has {len(data) * 8} bits; the limit is {OFFSETS_MAX}")
    bits = int.from_bytes(data, "little")
    return tuple(start + index for index in range(bits.bit_length()) if bits >> index & 1)


def _value(entry: Mapping[str, object], short: str, name: str) -> object:
    value = entry.get(short, entry.get(name))
    if value is None:
        raise ValueError(f"{name} is missing")
    return value


def _number(entry: Mapping[str, object], short: str, name: str) -> int:
    value = _value(entry, short, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is not a number")
    if not 0 <= value < 10**NUMBER_DIGITS_MAX:
        raise ValueError(f"{name} is out of range")
    return value


def _invalid(text: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, text)
