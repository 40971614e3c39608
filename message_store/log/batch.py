"""A batch of messages before its append: columns plus one staging buffer.

    rows     PUT columns, one row per message          (layout.PUT)
    staging  bodies and property texts, in any order   (rows point into it)

A single message is a batch of one. Parsers, `add` and deliveries fill the same columns, hooks
change them, and the store encodes them. Batches are reused after `clear`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from message_store import layout
from message_store.layout import Row, Rows
from message_store.log.properties import decode_properties, encode_properties
from message_store.text import java_hash

STAGING_BYTES_MIN = 1 << 16
TIMER_STALE_NAMES = ("DUEMQ_DUE_MS", "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")
NUMBER_DIGITS_MAX = 18
WRITTEN_COLUMNS = ("out_ms", "due_ms", "enqueue_ms", "dequeue_ms")


class PutBatch:
    """Columns and bytes of up to `capacity` messages; grows on demand.

    Attributes:
        rows: (capacity,) `layout.PUT`; the first `count` are filled.
        staging: (n,) u1; the first `staging_len` are used.
        remarks: Text for rows whose `status` is not 0.
        trusted: The messages were accepted before; maxMessageSize does not apply again.
        together: (first row, rows) of each client batch, which hooks refuse as a whole.
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
        self.together: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Remove all messages; keep the memory."""
        self.count = 0
        self.staging_len = 0
        self.trusted = False
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
        self.staging[pos : pos + len(data)] = np.frombuffer(data, np.uint8)
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
        row = self.rows[self.count]
        row["body_pos"] = self.stage(body)
        row["body_len"] = len(body)
        row["topic_index"] = topic_index
        row["queue_id"] = queue_id
        row["real_topic_index"] = -1
        row["real_queue_id"] = 0
        row["flag"] = flag
        row["born_ms"] = born_ms
        row["prepared_offset"] = prepared_offset
        row["reconsume_times"] = reconsume_times
        row["due_delay_ms"] = -1
        for name in WRITTEN_COLUMNS:
            row[name] = -1
        row["status"] = 0
        row["phys_offset"] = -1
        row["sys_flag"] = sys_flag
        self._set_host(row, "born", born_host, layout.SYS_BORN_IPV6)
        self._set_host(row, "store", store_host, layout.SYS_STORE_IPV6)
        self.count += 1
        self.set_properties(self.count - 1, properties)
        return self.count - 1

    @staticmethod
    def _set_host(row: Row, name: str, host: tuple[bytes, int], ipv6_bit: int) -> None:
        address, port = host
        number = int.from_bytes(address, "big")
        row[f"{name}_ip_hi"] = number >> 64
        row[f"{name}_ip_lo"] = number & 0xFFFF_FFFF_FFFF_FFFF
        row[f"{name}_port"] = port
        if len(address) == 16:
            row["sys_flag"] |= ipv6_bit
        else:
            row["sys_flag"] &= ~ipv6_bit

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
        pos = self.stage(properties)
        row = self.rows[index]
        row["prop_pos"] = pos
        row["prop_len"] = len(properties)
        fill_property_columns(row, properties, pos)

    def refuse(self, index: int, code: int, remark: str) -> None:
        """Mark message `index` as refused, with response code and remark of the response."""
        self.rows[index]["status"] = code
        self.remarks[index] = remark


def fill_property_columns(row: Row, text: bytes, pos: int) -> None:
    """Set the columns that kernels derive from the property text while they parse."""
    found = decode_properties(text)
    flags = 0
    if found.get("WAIT") == "false":
        flags |= layout.PROP_WAIT_FALSE
    if found.get("TRAN_MSG", "").lower() == "true":
        flags |= layout.PROP_TRAN_MSG
    if "TIMER_OUT_MS" in found:
        flags |= layout.PROP_TIMER_OUT
    if "TIMER_DEL_UNIQKEY" in found:
        flags |= layout.PROP_TIMER_DEL
    if "REAL_TOPIC" in found or "REAL_QID" in found:
        flags |= layout.PROP_REAL_TOPIC
    if "INNER_NUM" in found or "INNER_BASE" in found:
        flags |= layout.PROP_INNER_BATCH
    if "__SHARDINGKEY" in found:
        flags |= layout.PROP_SHARDED
    if not found.keys().isdisjoint(TIMER_STALE_NAMES):
        flags |= layout.PROP_TIMER_STALE
    row["prop_flags"] = flags
    row["tags_hash"] = java_hash(found.get("TAGS", ""))
    row["delay_level"] = _number(found.get("DELAY"), 0, layout.DELAY_ILLEGAL, 31)
    row["timer_kind"], row["timer_value"] = _timer(found)
    start, row["uniq_len"] = _place_of(text, b"UNIQ_KEY\x01")
    row["uniq_pos"] = pos + start if row["uniq_len"] else 0


def _place_of(text: bytes, head: bytes) -> tuple[int, int]:
    """Return start and length of a property's value, (0, 0) without one; the last one wins.

    Args:
        head: The name and its separator.
    """
    found, pos = (0, 0), 0
    for entry in text.split(b"\x02"):
        if entry.startswith(head) and len(entry) > len(head):
            found = pos + len(head), len(entry) - len(head)
        pos += len(entry) + 1
    return found


def _number(text: str | None, absent: int, illegal: int, bits: int) -> int:
    if text is None:
        return absent
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX):
        return illegal
    value = int(text)
    return value if -(1 << bits) < value < 1 << bits else illegal


def _timer(found: dict[str, str]) -> tuple[int, int]:
    kinds = (
        ("TIMER_DELAY_SEC", layout.TIMER_DELAY_SEC),
        ("TIMER_DELAY_MS", layout.TIMER_DELAY_MS),
        ("TIMER_DELIVER_MS", layout.TIMER_DELIVER_MS),
    )
    illegal = -(1 << 62)
    for name, kind in kinds:
        if name in found:
            value = _number(found[name], illegal, illegal, 62)
            return (layout.TIMER_ILLEGAL, 0) if value == illegal else (kind, value)
    return layout.TIMER_NONE, 0
