"""Half messages and their state: pure data of the transaction service.

    RMQ_SYS_TRANS_HALF_TOPIC  q0   h0  h1  h2  h3  h2'          h2' is h2 again, asked once
                                       ^ half_next: all before is finished
    RMQ_SYS_TRANS_OP_HALF_TOPIC q0 "0" "3" "2"           bodies: finished half offsets

A half message is finished when it was committed, rolled back, given up, or put again as a newer
copy; each leaves an op record. Two cursors are kept as progress of the group CID_RMQ_SYS_TRANS:
`half_next`, and `op_next`, the first op record that names a half message at or behind `half_next`.
Replaying the op queue from there on rebuilds everything, so a restart, and Apache opening the
store, know what is finished. A torn write can lose an op record: `same_half` finds the copies of a
message, and `torn_commits` finds commits in the log.

TransactionalMessageServiceImpl, TransactionalMessageBridge, TransactionalMessageUtil.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from delivery.redirected import queue_number
from duemq.net.codes import ResponseCode
from duemq.registry.internal_topics import Access, client_access
from message_store import layout
from message_store.errors import RequestError
from message_store.log.appender import CLOCK_STEP_MS_MAX
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable
from message_store.text import GROUP_BYTES_MAX, name_fault

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"
OP_TAG = "d"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CLIENT_ID_KEY = "UNIQ_KEY"
TRANSACTION_ID = "__transactionId__"
PRODUCER_GROUP = "PGROUP"
OFFSETS_OF_OP_MAX = 65_536


def prepare_half(properties: Mapping[str, str], topic: str, queue_id: int) -> dict[str, str]:
    """Return the properties of a half message that will go to a queue of `topic`."""
    prepared = dict(properties)
    if prepared.get(CLIENT_ID_KEY):
        prepared[TRANSACTION_ID] = prepared[CLIENT_ID_KEY]
    prepared["REAL_TOPIC"], prepared["REAL_QID"] = topic, str(queue_id)
    return prepared


def as_half(batch: PutBatch, index: int, topics: TopicTable) -> None:
    """Turn a prepared message of a batch into a half message; call before the put hooks.

    Its delay is left for the commit: the columns that hooks look at have none (Apache's hook
    would delay the half message itself and lose it).
    """
    row = batch.rows[index]
    real_topic, real_queue = topics.name(int(row["topic_index"])), int(row["queue_id"])
    batch.set_properties(index, prepare_half(batch.properties(index), real_topic, real_queue))
    to_half(batch, index, topics)


def to_half(batch: PutBatch, index: int, topics: TopicTable) -> None:
    """Send a row whose properties are those of a half message to the half topic, undelayed."""
    row = batch.rows[index]
    row["topic_index"], row["queue_id"] = topics.add(HALF_TOPIC), 0
    row["sys_flag"] = int(row["sys_flag"]) & ~layout.SYS_TRANSACTION_MASK
    row["delay_level"], row["timer_kind"] = 0, layout.TIMER_NONE


def add_op(
    batch: PutBatch,
    half_offsets: Iterable[int],
    topics: TopicTable,
    host: tuple[bytes, int],
    now_ms: int,
) -> int:
    """Add the record that marks these half messages as finished; return its row.

    4.9.x reads one number; 5.x reads numbers with commas between.
    """
    return batch.add(
        topic_index=topics.add(OP_TOPIC),
        queue_id=0,
        body=",".join(map(str, half_offsets)).encode(),
        properties=f"WAIT\x01true\x02TAGS\x01{OP_TAG}\x02".encode(),
        born_ms=now_ms,
        born_host=host,
        store_host=host,
    )


def parse_op(body: bytes) -> list[int]:
    """Return the half offsets of an op record, without invalid ones."""
    words = body[: OFFSETS_OF_OP_MAX * 20].split(b",")[:OFFSETS_OF_OP_MAX]
    return [int(word) for word in map(bytes.strip, words) if word.isdigit() and len(word) < 19]


Same = tuple[str, str, int]
"""What a half message and its later copies have in common: producer group, key, time of birth."""


def same_half(record: Record) -> Same | None:
    """Return what copies of one half message have in common; None if nothing."""
    key = record.properties.get(CLIENT_ID_KEY)
    group = record.properties.get(PRODUCER_GROUP)
    return (group, key, record.born_ms) if key and group else None


def times_asked(record: Record) -> int:
    """Return the number of check-backs of this half message."""
    text = record.properties.get(CHECK_TIMES, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def target_of(half: Record) -> tuple[str, int]:
    """Return topic and queue that a commit goes to.

    Raises:
        RequestError: The half message names none, or one that clients may not write to.
    """
    topic = half.properties.get("REAL_TOPIC", "")
    queue_id = queue_number(half.properties.get("REAL_QID", "0"))
    fault = name_fault(topic, bytes_max=GROUP_BYTES_MAX)
    if fault is not None or queue_id < 0 or not client_access(topic) & Access.WRITE:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the half message at {half.phys_offset} names no topic and queue to go to"
            + (f": {fault}" if fault else ""),
        )
    return topic, queue_id


@dataclass(slots=True)
class HalfMessages:
    """Which half messages are finished. Offsets are queue offsets of the two topics."""

    half_next: int = 0
    op_next: int = 0
    op_read: int = 0  # op records before it were applied
    finished: set[int] = field(default_factory=set)  # at or behind half_next
    copies: dict[Same, int] = field(default_factory=dict)  # unfinished, asked about: the newest
    _ops: deque[tuple[int, int]] = field(default_factory=deque)  # op offset, highest half offset

    def take_op(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Apply one op record, in the order of its queue; a repeated one changes nothing."""
        if op_offset < self.op_read:
            return
        named = [offset for offset in half_offsets if offset >= self.half_next]
        self.finished.update(named)
        self._ops.append((op_offset, max(named, default=-1)))
        self.op_read = op_offset + 1
        self._advance_ops()

    def finish(self, half_offset: int, same: Same | None = None) -> None:
        """Note that a half message is finished, before or after its op record is read."""
        if half_offset >= self.half_next:
            self.finished.add(half_offset)
        if same is not None and self.copies.get(same) == half_offset:
            del self.copies[same]

    def replace(self, elder: int, newest: int, same: Same | None) -> None:
        """Record that a half message was put again; the old offset then maps to the newest."""
        if elder >= self.half_next:
            self.finished.add(elder)
        if same is not None:
            self.copies[same] = newest

    def is_finished(self, half_offset: int) -> bool:
        return half_offset < self.half_next or half_offset in self.finished

    def advance(self, limit: int) -> None:
        """Advance `half_next` past finished messages, up to `limit`; drop state before it."""
        while self.half_next < limit and self.half_next in self.finished:
            self.finished.discard(self.half_next)
            self.half_next += 1
        self._advance_ops()

    def skip_to(self, half_offset: int) -> None:
        """Move `half_next` over half messages that retention took."""
        if half_offset > self.half_next:
            self.half_next = half_offset
            self.finished = {offset for offset in self.finished if offset >= half_offset}
            self._advance_ops()

    def _advance_ops(self) -> None:
        while self._ops and self._ops[0][1] < self.half_next:
            self._ops.popleft()
        self.op_next = self._ops[0][0] if self._ops else self.op_read


class Step(Enum):
    """What a round does with one half message that is not finished."""

    WAIT = "it is too young, and so are all after it"
    LEAVE = "its immunity time has not passed: check the next"
    ASK = "put it again and check back with its producer"
    GIVE_UP = "it reached the maximum number of check-backs"


def plan_step(record: Record, *, now_ms: int, timeout_ms: int, checks_max: int) -> Step:
    """Return what to do about an unfinished half message."""
    asked = times_asked(record)
    if asked >= checks_max:
        return Step.GIVE_UP
    if record.store_ms > now_ms + CLOCK_STEP_MS_MAX:  # the clock was set back since
        return Step.ASK
    immunity_ms = immunity(record, timeout_ms)
    if immunity_ms is not None:
        return Step.LEAVE if now_ms - record.born_ms < immunity_ms else Step.ASK
    if asked == 0 and now_ms - record.store_ms < timeout_ms:
        return Step.WAIT
    return Step.ASK


def immunity(record: Record, timeout_ms: int) -> int | None:
    """Return the immunity time that a half message requests, None for the default."""
    text = record.properties.get(IMMUNITY)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return timeout_ms
    return int(text) * 1_000


def mismatch(half: Record, producer_group: str, queue_offset: int) -> str:
    """Return why a record is not the half message that a request names; empty: it is."""
    if half.topic != HALF_TOPIC:
        return "Find prepared transaction message failed"
    if half.properties.get(PRODUCER_GROUP) != producer_group:
        return "The producer group wrong"
    if half.queue_offset != queue_offset:
        return "The transaction state table offset wrong"
    return ""
