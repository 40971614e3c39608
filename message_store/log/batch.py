"""Batch of messages to append: columns and one staging buffer.

    rows     PUT columns, one row per message          (layout.PUT)
    staging  bodies and property texts, in any order   (rows point into it)

A single message is a batch of one. Parsers, `add` and deliveries fill the same columns, hooks
change them, and the store encodes them. Batches are reused after `clear`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from duemq_common.text import java_hash
from message_store import layout
from message_store.layout import Rows
from message_store.log.properties import decode_properties, encode_properties

STAGING_BYTES_MIN = 1 << 16
TIMER_STALE_NAMES = ("DUEMQ_DUE_MS", "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")
_FLAGGED_NAMES = frozenset(
    {
        "WAIT",
        "TRAN_MSG",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "REAL_TOPIC",
        "REAL_QID",
        "INNER_NUM",
        "INNER_BASE",
        "__SHARDINGKEY",
        "_SYS_MSG_PRIORITY_",
        *TIMER_STALE_NAMES,
    }
)
SCHEDULE_PREFIX = "DUEMQ_SCHEDULE"  # of names: `layout.PROP_SCHEDULE`
_SCHEDULE = SCHEDULE_PREFIX.encode()
NUMBER_DIGITS_MAX = 18
IPV6_BYTES = 16
ALL_KINDS = -1
POSITIONS = ("body_pos", "prop_pos", "uniq_pos")
"""Columns with a position in the staging buffer."""
WRITTEN_COLUMNS = ("out_ms", "due_ms", "enqueue_ms", "dequeue_ms")
EMPTY_COLUMNS = dict.fromkeys(layout.PUT.names or (), 0) | dict.fromkeys(
    ("real_topic_index", "due_delay_ms", "phys_offset", *WRITTEN_COLUMNS), -1
)
"""Columns of an empty message, in the order of the layout."""


class PutBatch:
    """Columns and bytes of up to `capacity` messages; grows on demand.

    Attributes:
        rows: (capacity,) `layout.PUT`; the first `count` are filled.
        staging: (n,) u1; the first `staging_len` are used.
        remarks: Text for rows whose `status` is not 0.
        trusted: The messages were accepted before; maxMessageSize does not apply again.
        kinds: Kinds of messages that the batch may contain: bits, which put hooks define.
        together: (first row, rows) of rows that are refused as a whole: a client's batch, or a
            message and its op record.
        queue_slots: Slots of the queues that got units of its messages, set by the put.
        on_appended: Called by the put when the log has the accepted messages, before their queues
            are written; not if the store refuses all; must not raise. None: no call.
    """

    def __init__(self, capacity: int = 1024, staging_bytes: int = 1 << 20) -> None:
        self.rows: Rows = np.zeros(capacity, layout.PUT)
        self.staging: npt.NDArray[np.uint8] = np.empty(
            max(staging_bytes, STAGING_BYTES_MIN), np.uint8
        )
        self.count = 0
        self.staging_len = 0
        self.remarks: dict[int, str] = {}
        self.trusted = False
        self.kinds = ALL_KINDS
        self.together: list[tuple[int, int]] = []
        self.queue_slots: dict[int, None] = {}
        self.on_appended: Callable[[], None] | None = None

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Remove all messages; keep the memory."""
        self.count = 0
        self.staging_len = 0
        self.trusted = False
        self.kinds = ALL_KINDS
        self.on_appended = None
        if self.remarks:
            self.remarks = {}
        if self.together:
            self.together = []

    @property
    def filled(self) -> Rows:
        """The filled rows, as a view."""
        return self.rows[: self.count]

    def reserve(self, rows: int, staging_bytes: int) -> None:
        """Make room for `rows` more rows and `staging_bytes` more bytes."""
        if self.count + rows > self.rows.size:
            grown = np.zeros(max(self.rows.size * 2, self.count + rows), layout.PUT)
            grown[: self.count] = self.rows[: self.count]
            self.rows = grown
        if self.staging_len + staging_bytes > self.staging.size:
            bytes_ = np.empty(
                max(self.staging.size * 2, self.staging_len + staging_bytes), np.uint8
            )
            bytes_[: self.staging_len] = self.staging[: self.staging_len]
            self.staging = bytes_

    def stage(self, data: bytes | memoryview) -> int:
        """Copy `data` into the staging buffer; return its position."""
        self.reserve(0, len(data))
        pos = self.staging_len
        self.staging.data[pos : pos + len(data)] = data
        self.staging_len += len(data)
        return pos

    def add(
        self,
        *,
        topic_index: int,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        born_ms: int,
        born_host: tuple[bytes, int],
        store_host: tuple[bytes, int],
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
    ) -> int:
        """Append one message; return its row.

        Args:
            properties: Encoded property text (name 0x01 value 0x02 ...).
            born_host, store_host: Address bytes (4 or 16) and port; 16 sets bit 4 or 5 of
                `sys_flag`.
        """
        self.reserve(1, len(body) + len(properties))
        columns = EMPTY_COLUMNS | {
            "body_pos": self.stage(body),
            "body_len": len(body),
            "topic_index": topic_index,
            "queue_id": queue_id,
            "flag": flag,
            "sys_flag": sys_flag & ~(layout.SYS_BORN_IPV6 | layout.SYS_STORE_IPV6)
            | (layout.SYS_BORN_IPV6 if len(born_host[0]) == IPV6_BYTES else 0)
            | (layout.SYS_STORE_IPV6 if len(store_host[0]) == IPV6_BYTES else 0),
            "born_ms": born_ms,
            "born_port": born_host[1],
            "store_port": store_host[1],
            "prepared_offset": prepared_offset,
            "reconsume_times": reconsume_times,
        }
        columns["born_ip_hi"], columns["born_ip_lo"] = _words(born_host[0])
        columns["store_ip_hi"], columns["store_ip_lo"] = _words(store_host[0])
        columns |= property_columns(properties, self.stage(properties))
        self.rows[self.count] = tuple(columns.values())  # in the order of the layout
        self.count += 1
        return self.count - 1

    def extend(self, other: PutBatch) -> None:
        """Append the messages of another batch."""
        self.reserve(other.count, other.staging_len)
        rows = self.rows[self.count : self.count + other.count]
        rows[:] = other.filled
        for name in POSITIONS:
            rows[name] += self.staging_len
        end = self.staging_len + other.staging_len
        self.staging[self.staging_len : end] = other.staging[: other.staging_len]
        self.count, self.staging_len = self.count + other.count, end

    def body(self, index: int) -> bytes:
        """Return the body of message `index`."""
        row = self.rows[index]
        return self.staging[row["body_pos"] : row["body_pos"] + row["body_len"]].tobytes()

    def property_text(self, index: int) -> bytes:
        """Return the encoded properties of message `index`."""
        row = self.rows[index]
        return self.staging[row["prop_pos"] : row["prop_pos"] + row["prop_len"]].tobytes()

    def properties(self, index: int) -> dict[str, str]:
        """Return the decoded properties of message `index`."""
        return decode_properties(self.property_text(index))

    def set_properties(self, index: int, properties: bytes | dict[str, str]) -> None:
        """Replace the properties of message `index` and every column derived from them."""
        if isinstance(properties, dict):
            properties = encode_properties(properties)
        row = self.rows[index]
        for name, value in property_columns(properties, self.stage(properties)).items():
            row[name] = value

    def refuse(self, index: int, code: int, remark: str) -> None:
        """Mark message `index` as refused, with response code and remark of the response."""
        self.rows[index]["status"] = code
        self.remarks[index] = remark

    def refusal(self, index: int) -> str:
        """Return the reason why message `index`, whose `status` is not 0, was refused."""
        return self.remarks.get(index, "the store is not writable")

    def refuse_together(self) -> None:
        """Refuse all rows of a group in `together` of which one is refused."""
        for first, count in self.together:
            refused = np.flatnonzero(self.rows["status"][first : first + count])
            if refused.size:
                cause = first + int(refused[0])
                self.rows["status"][first : first + count] = self.rows[cause]["status"]
                remark = self.remarks.get(cause, "")
                self.remarks |= dict.fromkeys(range(first, first + count), remark)

    def group_end(self, index: int) -> int:
        """Return the row after the group in `together` that contains row `index`.

        Hooks skip these rows after a refusal: a client's batch may have thousands.
        """
        ends = (first + count for first, count in self.together if first <= index < first + count)
        return next(ends, index + 1)


def _words(address: bytes) -> tuple[int, int]:
    """Return an address as its high and its low 64 bits."""
    number = int.from_bytes(address, "big")
    return number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF


def property_columns(text: bytes, pos: int) -> dict[str, int]:
    """Return the columns derived from a property text at a position in the staging buffer."""
    properties = decode_properties(text)
    flags = 0 if properties.keys().isdisjoint(_FLAGGED_NAMES) else _flags(properties)
    if _SCHEDULE in text and any(name.startswith(SCHEDULE_PREFIX) for name in properties):
        flags |= layout.PROP_SCHEDULE
    kind, value = _timer(properties)
    start, uniq_len = _place_of(text, b"UNIQ_KEY\x01")
    return {
        "prop_pos": pos,
        "prop_len": len(text),
        "prop_flags": flags,
        "tags_hash": java_hash(properties.get("TAGS", "")),
        "delay_level": _number(properties.get("DELAY"), 0, layout.DELAY_ILLEGAL, 31),
        "timer_kind": kind,
        "timer_value": value,
        "uniq_pos": pos + start if uniq_len else 0,
        "uniq_len": uniq_len,
    }


def _flags(properties: dict[str, str]) -> int:
    """Return the PROP_* flags of properties."""
    flags = 0
    if properties.get("WAIT") == "false":
        flags |= layout.PROP_WAIT_FALSE
    if properties.get("TRAN_MSG", "").lower() == "true":
        flags |= layout.PROP_TRAN_MSG
    if "TIMER_OUT_MS" in properties:
        flags |= layout.PROP_TIMER_OUT
    if "TIMER_DEL_UNIQKEY" in properties:
        flags |= layout.PROP_TIMER_DEL
    if "REAL_TOPIC" in properties or "REAL_QID" in properties:
        flags |= layout.PROP_REAL_TOPIC
    if "INNER_NUM" in properties or "INNER_BASE" in properties:
        flags |= layout.PROP_INNER_BATCH
    if "__SHARDINGKEY" in properties:
        flags |= layout.PROP_SHARDED
    if "_SYS_MSG_PRIORITY_" in properties:
        flags |= layout.PROP_PRIORITY
    if not properties.keys().isdisjoint(TIMER_STALE_NAMES):
        flags |= layout.PROP_TIMER_STALE
    return flags


def _place_of(text: bytes, head: bytes) -> tuple[int, int]:
    """Return start and length of a property's value, (0, 0) without one; the last one wins.

    Args:
        head: The name and its separator.
    """
    last = text.rfind(b"\x02" + head) + 1  # 0: at most the first property
    if last or text.startswith(head):
        start = last + len(head)
        end = text.find(b"\x02", start)
        if (size := (end if end >= 0 else len(text)) - start) > 0:
            return start, size
    span, pos = (0, 0), 0  # the last one has no value
    for entry in text.split(b"\x02"):
        if entry.startswith(head) and len(entry) > len(head):
            span = pos + len(head), len(entry) - len(head)
        pos += len(entry) + 1
    return span


def _number(text: str | None, absent: int, illegal: int, bits: int) -> int:
    if text is None:
        return absent
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX):
        return illegal
    value = int(text)
    return value if -(1 << bits) < value < 1 << bits else illegal


def _timer(properties: dict[str, str]) -> tuple[int, int]:
    kinds = (
        ("TIMER_DELAY_SEC", layout.TIMER_DELAY_SEC),
        ("TIMER_DELAY_MS", layout.TIMER_DELAY_MS),
        ("TIMER_DELIVER_MS", layout.TIMER_DELIVER_MS),
    )
    illegal = -(1 << 62)
    for name, kind in kinds:
        if name in properties:
            value = _number(properties[name], illegal, illegal, 62)
            return (layout.TIMER_ILLEGAL, 0) if value == illegal else (kind, value)
    return layout.TIMER_NONE, 0
