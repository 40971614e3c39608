"""Rows of `pops`: checkpoints of pops and acknowledgements, one row per message.

Source: PopCheckPoint, AckMsg, BatchAckMsg
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Struct, field

OFFSETS_MAX: Final = 1_024
"""Maximum messages of one record; Apache's broker writes at most 32."""
INT64: Final = (-(1 << 63), (1 << 63) - 1)
INT32: Final = (-(1 << 31), (1 << 31) - 1)
PopRow = dict[str, object]


class _Checkpoint(Struct, kw_only=True):
    t: str
    c: str
    q: int
    so: int
    pt: int
    invisible_ms: int = field(name="it")
    n: int
    d: list[int] | None = None

    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages; a broker before 5.1 writes no distances."""
        distances = self.d or range(min(self.n, OFFSETS_MAX))
        return [self.so + distance for distance in distances]


class _PopAck(Struct):
    t: str
    c: str
    q: int
    pt: int
    ao: int = -1
    aol: list[int] | None = None

    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages."""
        return [self.ao] if self.aol is None else self.aol


KINDS: Final[dict[str | None, tuple[str, type[_Checkpoint | _PopAck]]]] = {
    "ck": ("pop", _Checkpoint),
    "ack": ("ack", _PopAck),
    "bAck": ("ack", _PopAck),
}


def pop_rows(
    broker: str, records: Iterable[tuple[int, int, str | None, bytes]]
) -> Iterator[PopRow]:
    """Yield the rows of records of the revive topic.

    Args:
        records: Log offset, store time in ms, tag and body of each record.
    """
    for log_offset, stored_ms, tag, body in records:
        facts: PopRow = {"broker": broker, "stored_ms": stored_ms, "log_offset": log_offset}
        made = _parsed(tag, body)
        if made is None:
            yield facts | {"record": "malformed"}
            continue
        record, message = made
        facts |= {
            "record": record,
            "topic": message.t,
            "consumer_group": message.c,
            "queue_id": message.q,
            "popped_ms": message.pt,
            "invisible_ms": message.invisible_ms if isinstance(message, _Checkpoint) else None,
        }
        for offset in message.offsets():
            yield facts | {"queue_offset": offset}


def _parsed(tag: str | None, body: bytes) -> tuple[str, _Checkpoint | _PopAck] | None:
    if tag not in KINDS:
        return None
    record, kind = KINDS[tag]
    try:
        message = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError):
        return None
    offsets = message.offsets()
    numbers = (
        [message.pt, message.invisible_ms] if isinstance(message, _Checkpoint) else [message.pt]
    )
    if not all(INT64[0] <= number <= INT64[1] for number in (*numbers, *offsets)):
        return None
    if not INT32[0] <= message.q <= INT32[1] or not 0 < len(offsets) <= OFFSETS_MAX:
        return None
    return record, message
