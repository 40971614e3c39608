"""Checkpoints of pops and acknowledgements: the records of the revive topic.

    pop  --checkpoint, due at its revive time - 1 s-->  revive queue
    ack  --acknowledgement, due at the revive time--->  revive queue

Source: PopCheckPoint, AckMsg, BatchAckMsg, PopMessageProcessor.buildCkMsg
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from duemq.net import wire_json
from duemq.pop.names import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG
from message_store.log.commit_log import CLOCK_STEP_MS_MAX
from message_store.log.record import Record

LEAD_MS: Final = 1_000  # PopAckConstants.ackTimeInterval
INVISIBLE_MS_MAX: Final = 10 * 365 * 86_400_000  # the default of timerMaxDelaySec is lower
OFFSETS_MAX: Final = 1_024  # per record; Apache's broker writes at most 32
Key = tuple[str, str, int, int, int, str]
"""Key of a checkpoint: topic, group, queue, start offset, pop time in ms, broker name."""


def is_ahead(pop_ms: int, now_ms: int) -> bool:
    """Return whether the clock was set back since a pop."""
    return pop_ms > now_ms + CLOCK_STEP_MS_MAX


class RecordError(ValueError):
    """A record of the revive topic that is neither a checkpoint nor an acknowledgement."""


@dataclass(slots=True)
class PopCheckpoint:
    """Checkpoint: the messages of one queue that one pop returned to one group.

    Attributes:
        start_offset: Queue offset from which the pop read.
        pop_ms: Time of the pop, in ms since the epoch.
        invisible_ms: Time from the pop until unacknowledged messages are visible again, in ms.
        offsets: Queue offsets of the messages.
        acked: Queue offsets of the acknowledged messages.
        log_offset: Log offset of the first message, in bytes; None: unknown.
        put_offset: Log offset after all of the messages, in bytes; None: unknown.
        stored_ms: Store time of the record that was read, in ms since the epoch; 0: none was read.
        suspended: Whether the messages are visible again without a counted retry.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    broker_name: str
    acked: set[int] = field(default_factory=set)
    log_offset: int | None = field(default=None, compare=False)
    put_offset: int | None = field(default=None, compare=False)
    stored_ms: int = field(default=0, compare=False)
    suspended: bool = False

    @property
    def revive_ms(self) -> int:
        """Time from which unacknowledged messages are visible again, in ms since the epoch."""
        return self.pop_ms + self.invisible_ms

    def visible_ms(self, now_ms: int) -> int:
        """Return the revive time of a checkpoint in the revive topic.

        If the clock was set back since the pop, the invisible time begins again when the record is
        in the revive topic. Of a record that was there before the clock was set back, it begins
        now.
        """
        if not is_ahead(self.pop_ms, now_ms):
            return self.revive_ms
        return min(self.stored_ms, now_ms) + self.invisible_ms

    @property
    def due_ms(self) -> int:
        """Time at which the record is delivered to the revive topic, in ms since the epoch."""
        return self.revive_ms - LEAD_MS

    @property
    def key(self) -> Key:
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_ms,
            self.broker_name,
        )

    @property
    def unacknowledged(self) -> list[int]:
        """Queue offsets of the messages that are visible again at the revive time."""
        return [offset for offset in self.offsets if offset not in self.acked]

    def body(self) -> bytes:
        suspended = {"sp": True} if self.suspended else {}  # brokers before 5.4 do not read it
        return wire_json.encode(
            {
                "bm": 0,
                "bn": self.broker_name,
                "c": self.group,
                "d": [offset - self.start_offset for offset in self.offsets],
                "it": self.invisible_ms,
                "n": len(self.offsets),
                "pt": self.pop_ms,
                "q": self.queue_id,
                "reviveTime": self.revive_ms,
                "ro": 0,
                "so": self.start_offset,
                **suspended,
                "t": self.topic,
            }
        )

    def properties(self) -> dict[str, str]:
        return _properties(CHECKPOINT_TAG, self.key, str(self.start_offset), self.due_ms)


class Acknowledgement(Struct):
    """Acknowledgement: messages of one checkpoint that a consumer has processed.

    Attributes:
        start_offset: Start offset of the checkpoint.
        pop_ms: Pop time of the checkpoint, in ms since the epoch.
        offsets: Queue offsets of the messages.
        due_ms: Revive time of the checkpoint, in ms since the epoch; 0: unknown, because the clock
            was set back since the pop.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int
    offsets: tuple[int, ...]
    broker_name: str
    due_ms: int

    @property
    def key(self) -> Key:
        return (
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_ms,
            self.broker_name,
        )

    @property
    def is_batch(self) -> bool:
        return len(self.offsets) != 1

    def body(self) -> bytes:
        offsets: dict[str, object] = {"ao": self.offsets[0]}
        if self.is_batch:
            offsets = {"ao": -1, "aol": self.offsets}
        return wire_json.encode(
            {
                **offsets,
                "bn": self.broker_name,
                "c": self.group,
                "pt": self.pop_ms,
                "q": self.queue_id,
                "so": self.start_offset,
                "t": self.topic,
            }
        )

    def properties(self) -> dict[str, str]:
        tag = BATCH_ACK_TAG if self.is_batch else ACK_TAG
        named = "-1" if self.is_batch else str(self.offsets[0])
        return _properties(tag, self.key, named, self.due_ms)


Entry = tuple[int, PopCheckpoint | Acknowledgement]
"""Revive queue of a record, and the record."""
AckEntry = tuple[int, Acknowledgement]
"""Revive queue of an acknowledgement, and the acknowledgement."""


def _properties(tag: str, key: Key, offset: str, due_ms: int) -> dict[str, str]:
    topic, group, queue_id, _, pop_ms, broker_name = key
    kind = CHECKPOINT_TAG if tag == CHECKPOINT_TAG else ACK_TAG
    unique = "@".join([topic, str(queue_id), offset, group, str(pop_ms), broker_name, kind])
    return {"TAGS": tag, "UNIQ_KEY": unique, "TIMER_DELIVER_MS": str(due_ms)}


def parse_revive_record(record: Record, broker_name: str) -> PopCheckpoint | Acknowledgement:
    """Return the checkpoint or the acknowledgement in a record of the revive topic.

    Args:
        broker_name: Broker name for a record without one.
    Raises:
        RecordError: The record is neither a checkpoint nor an acknowledgement, or is malformed.
    """
    tag = record.properties.get("TAGS")
    try:
        data = wire_json.parse_object(record.body)
        if tag == CHECKPOINT_TAG:
            return _checkpoint(data, record, broker_name)
        if tag == ACK_TAG:
            return _acknowledgement(data, record, broker_name, [data["ao"]])
        if tag == BATCH_ACK_TAG:
            return _acknowledgement(data, record, broker_name, data["aol"])
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{type(error).__name__}: {error}") from error
    raise RecordError(f"unknown tag {tag!r}")


def _checkpoint(data: Mapping[str, object], record: Record, broker_name: str) -> PopCheckpoint:
    origin = -(record.prepared_offset + 1)  # of a record that a timer delivered
    start, count = _whole(data["so"]), _whole(data["n"])
    distances = _offsets(data.get("d") or [])
    if not distances:  # written by an old 5.0 broker
        distances = tuple(range(min(count, OFFSETS_MAX)))
    offsets = tuple(start + distance for distance in distances)
    acked = _whole(data.get("bm", 0))  # bit n: message offsets[n] is acknowledged
    return PopCheckpoint(
        topic=_text(data["t"]),
        group=_text(data["c"]),
        queue_id=_whole(data["q"]),
        start_offset=start,
        pop_ms=_whole(data["pt"]),
        invisible_ms=_whole(data["it"]),
        offsets=offsets,
        broker_name=_text(data.get("bn") or broker_name),
        acked={index for number, index in enumerate(offsets) if acked >> number & 1}
        if acked
        else set(),
        stored_ms=record.store_ms,
        put_offset=origin if record.prepared_offset < 0 else record.phys_offset,
        suspended=data.get("sp") is True,
    )


def _acknowledgement(
    data: Mapping[str, object], record: Record, broker_name: str, offsets: object
) -> Acknowledgement:
    due, pop_ms = record.properties.get("TIMER_DELIVER_MS", "0"), _whole(data["pt"])
    is_known = due.isascii() and due.isdigit() and pop_ms <= record.store_ms
    return Acknowledgement(
        topic=_text(data["t"]),
        group=_text(data["c"]),
        queue_id=_whole(data["q"]),
        start_offset=_whole(data["so"]),
        pop_ms=pop_ms,
        offsets=_offsets(offsets),
        broker_name=_text(data.get("bn") or broker_name),
        due_ms=int(due) if is_known else 0,
    )


def _offsets(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > OFFSETS_MAX:
        raise ValueError(f"the offsets must be a list of at most {OFFSETS_MAX} numbers")
    return tuple(_whole(offset) for offset in value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{str(value)[:32]!r} is not a whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:32]!r} is not a text")
    return value
