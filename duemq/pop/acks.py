"""Acknowledgements (200051, 200151) and changes of invisible times (200053).

    handle --parse, check--> acknowledgement, due when the message would be visible again
    change --> checkpoint of the one message + acknowledgement of the old one, in one batch

Source: AckMessageProcessor, ChangeInvisibleTimeProcessor
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from delivery.plugin import Request, Response
from duemq.net import fields, wire_json
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.dispatcher import Handler, Route
from duemq.pop.checkpoints import INVISIBLE_MS_MAX, OFFSETS_MAX, Acknowledgement, Checkpoint
from duemq.pop.names import ORDER_QUEUE, topic_of_flag
from duemq.pop.order_info import Settled
from duemq.pop.orderly import Orderly
from duemq.pop.pop_offsets import Place, PopOffsets
from duemq.pop.receipts import (
    NUMBER_DIGITS_MAX,
    Receipt,
    ReceiptError,
    check_revive_queue,
    parse_receipt,
)
from duemq.pop.revive_log import Entry, ReviveLog
from duemq.ports import Identity, Topics
from duemq.registry.internal_topics import check_readable
from message_store.clock import Clock
from message_store.errors import RequestError

if TYPE_CHECKING:
    from message_store.store import MessageStore

ENTRIES_MAX: Final = 1_024  # of one batch acknowledgement
BODY_BYTES_MAX: Final = 1 << 20


class AckProcessor:
    """Answers 200051, 200151 and 200053.

    Args:
        serves: Returns why POP is not served here; empty: it is.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        offsets: PopOffsets,
        revive_log: ReviveLog,
        orderly: Orderly,
        identity: Identity,
        clock: Clock,
        serves: Callable[[], str],
    ) -> None:
        self._store, self._topics, self._revive_log = store, topics, revive_log
        self._offsets, self._orderly = offsets, orderly
        self._identity, self._clock, self._serves = identity, clock, serves

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self.acknowledge,
            RequestCode.BATCH_ACK_MESSAGE: Route(
                self.acknowledge_batch, body_bytes_max=BODY_BYTES_MAX
            ),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change_invisible_time,
        }

    async def acknowledge(self, request: Request) -> Response:
        """Put the acknowledgement of one message."""
        entry = self.admit(request)
        if entry is not None:
            await self._revive_log.put_in_turn(entry)
            await self._revive_log.confirm("the message was acknowledged")
        return Response()

    def admit(self, request: Request) -> Entry | None:
        """Return the record for an acknowledgement; None: an orderly pop's, which is done.

        Raises:
            RequestError: It is refused.
        """
        group, topic, queue_id, offset = self._message(request)
        self._check_offset(topic, queue_id, offset, end_is_valid=True)
        receipt = self._receipt(request)
        if receipt.is_orderly:
            self._acknowledge_orderly(Place(group, topic, queue_id), offset, receipt.pop_ms)
            return None
        return _acknowledgement(group, topic, queue_id, offset, receipt)

    def valid_offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the lowest and the highest offset of a queue that can be acknowledged now.

        Raises:
            RequestError: There is no such queue, or POP is not served.
        """
        self._check_service()
        self._check_queue(topic, queue_id)
        return self._store.queue_bounds(topic, queue_id)

    async def change_invisible_time(self, request: Request) -> Response:
        """Give one message a new invisible time, from now on.

        Raises:
            RequestError: With NO_MESSAGE if its time is over: it is visible again.
        """
        group, topic, queue_id, offset = self._message(request)
        invisible_ms = fields.long(request, "invisibleTime")
        self._check_offset(topic, queue_id, offset, end_is_valid=False)
        receipt, now_ms = self._receipt(request), self._clock.now_ms()
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise _invalid(f"invisibleTime is {invisible_ms}; 0 to {INVISIBLE_MS_MAX} is possible")
        if receipt.is_orderly:
            return self._change_orderly(
                Place(group, topic, queue_id), offset, receipt, now_ms + invisible_ms
            )
        if receipt.visible_ms <= now_ms:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"message {offset} of {topic}/{queue_id} is visible again since "
                f"{now_ms - receipt.visible_ms} ms: its handle has expired",
            )
        pop_ms = max(now_ms, receipt.pop_ms + 1)  # another name than the old checkpoint's
        invisible_ms = max(invisible_ms - (pop_ms - now_ms), 0)
        renewed = Checkpoint(
            topic=topic,
            group=group,
            queue_id=queue_id,
            start_offset=offset,
            pop_ms=pop_ms,
            invisible_ms=invisible_ms,
            offsets=(offset,),
            broker_name=self._identity.broker_name,
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

    def _acknowledge_orderly(self, place: Place, offset: int, pop_ms: int) -> None:
        """Acknowledge a message of the last orderly pop of a queue; older ones change nothing.

        Raises:
            RequestError: With MESSAGE_ILLEGAL if that pop did not give it.
        """
        if offset < self._offsets.committed(place):
            return
        following = self._orderly.table.acknowledge(place, offset, pop_ms)
        if following is Settled.ILLEGAL:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{place.topic}@{place.group}@{place.queue_id}, "
                f"commit:{offset}: it is not in the last pop of the queue",
            )
        if not isinstance(following, Settled):
            self._offsets.acknowledged(place, following)
            self._orderly.changed(place)

    def _change_orderly(
        self, place: Place, offset: int, receipt: Receipt, visible_ms: int
    ) -> Response:
        """Set when a message of the last orderly pop is visible again."""
        if offset >= self._offsets.committed(place) and self._orderly.table.set_visible(
            place, offset, receipt.pop_ms, visible_ms
        ):
            self._orderly.changed(place)
        return Response(
            fields={
                "popTime": str(receipt.pop_ms),
                "invisibleTime": str(visible_ms - receipt.pop_ms),
                "reviveQid": str(receipt.revive_queue),
            }
        )

    async def acknowledge_batch(self, request: Request) -> Response:
        """Put the acknowledgements of messages of several pops."""
        entries: list[Entry] = []
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
        """Return the group, topic, queue and offset that a request names."""
        group, topic = fields.text(request, "consumerGroup"), fields.text(request, "topic")
        queue_id, offset = fields.integer(request, "queueId"), fields.long(request, "offset")
        fields.text(request, "extraInfo")
        self._check_service()
        self._check_queue(topic, queue_id)
        return group, topic, queue_id, offset

    def _check_service(self) -> None:
        if why := self._serves():
            raise RequestError(ResponseCode.NO_PERMISSION, why)

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

    def _receipt(self, request: Request) -> Receipt:
        """Return the handle of a request."""
        try:
            receipt = parse_receipt(fields.text(request, "extraInfo"), self._identity.broker_name)
        except ReceiptError as error:
            raise _invalid(f"extraInfo is no receipt handle: {error}") from error
        return receipt

    def _batch_entry(self, each: Mapping[str, object]) -> Entry | None:
        """Return the acknowledgement of one entry, None if it names no message that exists."""
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
                self._acknowledge_orderly(Place(group, topic, queue_id), offset, pop_ms)
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


def _acknowledgement(group: str, topic: str, queue_id: int, offset: int, receipt: Receipt) -> Entry:
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
        RequestError: With NO_MESSAGE if there are none, INVALID_PARAMETER if it is malformed.
    """
    try:
        entries = wire_json.parse_object(body).get("acks")
    except ValueError as error:
        raise _invalid(f"the body is malformed: {error}") from error
    if not entries:
        raise RequestError(ResponseCode.NO_MESSAGE, "the batch has no acknowledgements")
    if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
        raise _invalid(f"acks is not a list of at most {ENTRIES_MAX} entries")
    for entry in entries:
        if not isinstance(entry, dict):
            raise _invalid("an entry of the batch is not an object")
        yield entry


def bit_offsets(value: object, start: int) -> tuple[int, ...]:
    """Return the offsets whose bits are set; bit 0 is `start`.

    Args:
        value: Bytes of a Java BitSet as base64, or a list of numbers from -128 to 255.
    Raises:
        ValueError: It is neither, or too long.
    """
    if isinstance(value, str):
        try:
            data = base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the bits are not base64: {error}") from error
    elif isinstance(value, list) and all(isinstance(each, int) for each in value):
        data = bytes(each & 0xFF for each in value)
    else:
        raise ValueError("the bits are not base64")
    if len(data) * 8 > OFFSETS_MAX:
        raise ValueError(f"{len(data) * 8} bits are too many; the limit is {OFFSETS_MAX}")
    bits = int.from_bytes(data, "little")
    return tuple(start + at for at in range(bits.bit_length()) if bits >> at & 1)


def _value(entry: Mapping[str, object], short: str, name: str) -> object:
    found = entry.get(short, entry.get(name))
    if found is None:
        raise ValueError(f"{name} is missing")
    return found


def _number(entry: Mapping[str, object], short: str, name: str) -> int:
    found = _value(entry, short, name)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"{name} is not a number")
    if not 0 <= found < 10**NUMBER_DIGITS_MAX:
        raise ValueError(f"{name} is out of range")
    return found


def _invalid(text: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, text)
