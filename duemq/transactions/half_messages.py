"""Half messages and their state: data and decisions of the transaction service, without I/O.

    RMQ_SYS_TRANS_HALF_TOPIC  q0   h0  h1  h2  h3  h2'        h2': copy of h2 after a check-back
                                       ^ half_next: all half messages before it are finished
    RMQ_SYS_TRANS_OP_HALF_TOPIC q0 "0" "3" "2"   bodies: offsets of finished half messages

A half message is finished when it is committed, rolled back, given up, or replaced by a newer copy;
each of these appends an op record. Two cursors are stored as consumer offsets of the group
CID_RMQ_SYS_TRANS: `half_next`, and `op_next`, the first op record with a half offset at or after
`half_next`. Replaying the op queue from `op_next` restores the state, in DueMQ and in Apache's
broker. If a torn write loses an op record, the state is restored from the messages: copies are
found by `half_identity`, commits by `torn_commits`.

Source: TransactionalMessageServiceImpl, TransactionalMessageBridge, TransactionalMessageUtil
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct, field

from delayed_delivery.redirected import queue_number
from duemq.registry.internal_topics import TopicAccess, client_access
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.text import GROUP_BYTES_MAX, name_fault
from duemq_common.topics import HALF_TOPIC, OP_HALF_TOPIC, ROCKSDB_HALF_TOPIC
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.commit_log import CLOCK_STEP_MS_MAX
from message_store.log.offset_id import decode_offset_id
from message_store.log.record import Host, Record
from message_store.queues.topic_table import TopicTable

OP_TAG = "d"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CLIENT_ID_KEY = "UNIQ_KEY"
TRANSACTION_ID = "__transactionId__"
PRODUCER_GROUP = "PGROUP"
OFFSETS_PER_OP_MAX = 65_536


def prepare_half(properties: Mapping[str, str], topic: str, queue_id: int) -> dict[str, str]:
    """Return the properties of a half message whose commit goes to a queue of `topic`."""
    prepared = dict(properties)
    if prepared.get(CLIENT_ID_KEY):
        prepared[TRANSACTION_ID] = prepared[CLIENT_ID_KEY]
    prepared["REAL_TOPIC"], prepared["REAL_QID"] = topic, str(queue_id)
    return prepared


def to_half_message(batch: PutBatch, index: int, topics: TopicTable) -> None:
    """Convert a prepared message of a batch to a half message; call before the put hooks.

    The delay properties stay and apply at commit. The columns that hooks read are set to no delay;
    with a delay, Apache's hook would redirect the half message, and it would be lost.
    """
    row = batch.rows[index]
    real_topic, real_queue = topics.name(int(row["topic_index"])), int(row["queue_id"])
    batch.set_properties(index, prepare_half(batch.properties(index), real_topic, real_queue))
    to_half(batch, index, topics)


def to_half(batch: PutBatch, index: int, topics: TopicTable) -> None:
    """Redirect a row with half message properties to the half topic, without delay."""
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
    """Add the op record that marks half messages as finished; return its row.

    Apache 4.9.x reads one offset, 5.x a comma-separated list.
    """
    return batch.add(
        topic_index=topics.add(OP_HALF_TOPIC),
        queue_id=0,
        body=",".join(map(str, half_offsets)).encode(),
        properties=f"WAIT\x01true\x02TAGS\x01{OP_TAG}\x02".encode(),
        born_ms=now_ms,
        born_host=host,
        store_host=host,
    )


def parse_op(body: bytes) -> list[int]:
    """Return the half offsets of an op record; skip invalid ones."""
    words = body[: OFFSETS_PER_OP_MAX * 20].split(b",")[:OFFSETS_PER_OP_MAX]
    return [int(word) for word in map(bytes.strip, words) if word.isdigit() and len(word) < 19]


HalfIdentity = tuple[str, str, str, int, Host]
"""Identity of a half message and its copies: topic, producer group, key, born time, born host.

Clients choose group, key and born time; the broker sets the topic, which the account of a half
message may send to, and the host.
"""


def half_identity(record: Record) -> HalfIdentity | None:
    """Return the identity shared by all copies of a half message; None without group or key."""
    key = record.properties.get(CLIENT_ID_KEY)
    group = record.properties.get(PRODUCER_GROUP)
    topic = record.properties.get("REAL_TOPIC", record.topic)
    return (topic, group, key, record.born_ms, record.born_host) if key and group else None


def check_count(record: Record) -> int:
    """Return the number of check-backs so far, from a property; 0 if it is invalid."""
    text = record.properties.get(CHECK_TIMES, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def target_of(half: Record) -> tuple[str, int]:
    """Return the topic and queue id of the commit.

    Raises:
        RequestError: The half message has no valid topic, or clients may not write to it.
    """
    topic = half.properties.get("REAL_TOPIC", "")
    queue_id = queue_number(half.properties.get("REAL_QID", "0"))
    fault = name_fault(topic, bytes_max=GROUP_BYTES_MAX)
    if fault is not None or queue_id < 0 or not client_access(topic) & TopicAccess.WRITE:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the half message at {half.phys_offset} has no valid target topic and queue"
            + (f": {fault}" if fault else ""),
        )
    return topic, queue_id


class HalfMessages(Struct):
    """State of the half messages. Offsets are queue offsets of the two topics.

    Attributes:
        half_next: Offset before which all half messages are finished.
        op_next: Offset of the first op record that is needed to restore the state.
        op_read: Offset after the last applied op record.
        finished: Offsets of finished half messages, at or after `half_next`.
        copies: Offsets of the newest copies.
    """

    half_next: int = 0
    op_next: int = 0
    op_read: int = 0
    finished: set[int] = field(default_factory=set)
    copies: dict[HalfIdentity, int] = field(default_factory=dict)
    _ops: deque[tuple[int, int]] = field(default_factory=deque)  # (op offset, highest half offset)

    def apply_op(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Apply one op record; ignore it if it is before `op_read`. Call in queue order."""
        if op_offset < self.op_read:
            return
        finished = [offset for offset in half_offsets if offset >= self.half_next]
        self.finished.update(finished)
        self._ops.append((op_offset, max(finished, default=-1)))
        self.op_read = op_offset + 1
        self._advance_ops()

    def finish(self, half_offset: int, identity: HalfIdentity | None = None) -> None:
        """Mark a half message as finished; its op record may be applied before or afterwards."""
        if half_offset >= self.half_next:
            self.finished.add(half_offset)
        if identity is not None and self.copies.get(identity) == half_offset:
            del self.copies[identity]

    def replace(self, old_offset: int, new_offset: int, identity: HalfIdentity | None) -> None:
        """Replace a half message by its newer copy."""
        if old_offset >= self.half_next:
            self.finished.add(old_offset)
        if identity is not None:
            self.copies[identity] = new_offset

    def is_finished(self, half_offset: int) -> bool:
        """Return whether the half message at an offset is finished."""
        return half_offset < self.half_next or half_offset in self.finished

    def advance(self, limit: int) -> None:
        """Advance `half_next` past finished messages, up to `limit`; drop the state before it."""
        while self.half_next < limit and self.half_next in self.finished:
            self.finished.discard(self.half_next)
            self.half_next += 1
        self._advance_ops()

    def skip_to(self, half_offset: int) -> None:
        """Advance `half_next` to `half_offset`, past half messages that retention removed."""
        if half_offset > self.half_next:
            self.half_next = half_offset
            self.finished = {offset for offset in self.finished if offset >= half_offset}
            self._advance_ops()

    def _advance_ops(self) -> None:
        while self._ops and self._ops[0][1] < self.half_next:
            self._ops.popleft()
        self.op_next = self._ops[0][0] if self._ops else self.op_read


class CheckStep(Enum):
    """Action of a check round on an unfinished half message."""

    WAIT = "end the round: this message and all later ones are too recent"
    SKIP = "skip the message: its immunity time has not passed"
    CHECK_BACK = "append a copy and send a check-back to the producer"
    GIVE_UP = "give the message up: it has the maximum number of check-backs"


def plan_step(record: Record, *, now_ms: int, timeout_ms: int, checks_max: int) -> CheckStep:
    """Return the action for an unfinished half message.

    Args:
        timeout_ms: Age at which the first check-back is sent (`transactionTimeOut`).
        checks_max: Check-backs after which a message is given up (`transactionCheckMax`).
    """
    checks = check_count(record)
    if checks >= checks_max:
        return CheckStep.GIVE_UP
    if record.store_ms > now_ms + CLOCK_STEP_MS_MAX:  # the clock was set back: the age is unknown
        return CheckStep.CHECK_BACK
    immunity_ms = immunity(record, timeout_ms)
    if immunity_ms is not None:
        return CheckStep.SKIP if now_ms - record.born_ms < immunity_ms else CheckStep.CHECK_BACK
    if checks == 0 and now_ms - record.store_ms < timeout_ms:
        return CheckStep.WAIT
    return CheckStep.CHECK_BACK


def is_expired(record: Record, now_ms: int, *, interval_ms: int, checks_max: int) -> bool:
    """Return whether a half message without a count is as old as one with all its check-backs.

    Args:
        interval_ms: Time between two check-backs (`transactionCheckInterval`).
        checks_max: See `plan_step`.
    """
    return now_ms - record.store_ms >= interval_ms * checks_max


def immunity(record: Record, timeout_ms: int) -> int | None:
    """Return the immunity time of a half message in ms; None if it requests none.

    An invalid request counts as `timeout_ms`.
    """
    text = record.properties.get(IMMUNITY)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return timeout_ms
    return int(text) * 1_000


def mismatch(half: Record, producer_group: str, queue_offset: int) -> str:
    """Return the error text if a record is not the half message of a request, else ""."""
    if half.topic not in (HALF_TOPIC, ROCKSDB_HALF_TOPIC):
        return "Find prepared transaction message failed"
    if half.properties.get(PRODUCER_GROUP) != producer_group:
        return "The producer group wrong"
    if half.queue_offset != queue_offset:
        return "The transaction state table offset wrong"
    return ""


def offset_of_id(message_id: str) -> int:
    """Return the log offset in an offset message id.

    Raises:
        RequestError: The id is invalid.
    """
    try:
        return decode_offset_id(message_id)[2]
    except ValueError as fault:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId: {fault}") from fault
