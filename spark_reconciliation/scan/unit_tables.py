"""Tables of the files derived from the log: queues, timer log, wheel, cursors, index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from duemq_common.topics import PENDING_TOPICS
from message_store.kernels import verify
from message_store.layout import (
    CQ_UNIT,
    INDEX_HEADER,
    INDEX_ITEM,
    PRE_BLANK_SIZE,
    native_columns,
    packer,
)
from message_store.verify.index import find_shape
from spark_reconciliation.arrays import Rows
from spark_reconciliation.scan.files import Entry, Root, queues_of
from spark_reconciliation.scan.planning import Finding, LogPlan, ScanSegment, row_of_files
from spark_reconciliation.scan.store_state import BAD_INPUT, OFFSETS_FILE, read_check, read_json
from spark_reconciliation.scan.unit_faults import Codes, compare_units, fault_texts
from timer_store.layout import TIMER_SLOT, TIMER_UNIT, UNIT_BYTES

GROUPS_FILE: Final = "config/consumerOffset.json"
CHUNK_BYTES: Final = 8 << 20
FAULTS_MAX: Final = 1_000  # maximum faults of one piece of a queue of delivered messages
HEADER: Final = packer(INDEX_HEADER)
Values = dict[str, Any]


# -- planning -----------------------------------------------------------------------------------


def queue_segments(
    root: Root, limit: int, *, topics: frozenset[str] = frozenset()
) -> tuple[list[ScanSegment], list[Finding]]:
    """Return a segment for each file of the consume queues, and findings about files."""
    segments: list[ScanSegment] = []
    findings: list[Finding] = []
    for topic, queue_id, entries in queues_of(root, "consumequeue"):
        if topics and topic not in topics:
            continue
        kept, row_findings = row_of_files(root.url, entries)
        findings += row_findings
        whole = (ScanSegment.whole(root, entry, limit) for entry in kept)
        segments += [replace(one, topic=topic, queue_id=queue_id) for one in whole]
    return segments, findings


def file_segments(
    root: Root, below: str, limit: int, *, unit_bytes: int, bytes_max: int
) -> tuple[list[ScanSegment], list[Finding]]:
    """Return segments of whole units for the files of a row."""
    kept, findings = row_of_files(root.url, root.files(below))
    step = max(bytes_max // unit_bytes, 1) * unit_bytes
    whole = (ScanSegment.whole(root, entry, limit) for entry in kept)
    return [segment for one in whole for segment in one.pieces(step)], findings


def named_files(root: Root, below: str, limit: int, name: str = "") -> list[ScanSegment]:
    """Return a segment for each non-empty file of a directory, or for the file `name`."""
    entries = (entry for entry in root.files(below) if entry.size and name in ("", entry.name))
    return [replace(ScanSegment.whole(root, entry, limit), base=0) for entry in entries]


# -- reading ------------------------------------------------------------------------------------


def read_units(
    table: str,
    segment: ScanSegment,
    columns: Collection[str] = (),
    *,
    lost: bool = False,
    log: LogPlan | None = None,
) -> Iterator[Values]:
    """Yield the columns of a segment, piece by piece: arrays, or one value for all rows.

    An unreadable file is one row with its position and `damage`, if the table has that column and
    it is requested. Otherwise it has no rows; it is a row of `findings`.

    Args:
        columns: Requested columns.
        lost: Only units with a fault, and unreadable files.
        log: Log, for `fault` and `lost`.
    """
    try:
        for values in READERS[table](segment):
            if "fault" in columns or lost:
                assert log is not None
                codes = compare_units(segment, values, log)
                values["fault"] = fault_texts(codes, values)
            yield _faulty(segment, values, codes) if lost else values
    except OSError:
        if table == "consume_queue" and "damage" in columns:
            yield _unreadable(segment)


def _faulty(segment: ScanSegment, values: Values, codes: Codes) -> Values:
    """Return the units with a fault; of delivered messages at most FAULTS_MAX."""
    here = np.flatnonzero(codes != verify.GOOD)
    here = here if segment.topic in PENDING_TOPICS else here[:FAULTS_MAX]
    return {
        name: value[here] if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


def _unreadable(segment: ScanSegment) -> Values:
    queue_offset = np.array([segment.base // CQ_UNIT.itemsize], np.int64)
    return {
        "topic": segment.topic,
        "queue_id": segment.queue_id,
        "queue_offset": queue_offset,
        "damage": "unreadable",
    }


def _blocks(segment: ScanSegment, layout: np.dtype[Any]) -> Iterator[tuple[int, Rows]]:
    """Yield (position in the file, native units)."""
    size = layout.itemsize
    step = CHUNK_BYTES // size * size
    for start in range(segment.start, segment.end, step):
        data = segment.root.read(segment.path, start, min(start + step, segment.end))
        units = np.frombuffer(data[: data.size // size * size], layout)
        yield start, native_columns(units)


def _read_queue(segment: ScanSegment) -> Iterator[Values]:
    """Yield units up to the first unwritten one, except those that point after the plan's log."""
    for start, units in _blocks(segment, CQ_UNIT):
        bad = np.flatnonzero((units["size"] <= 0) | (units["phys_offset"] < 0))
        count = int(bad[0]) if bad.size else int(units.size)
        units = units[:count]
        numbers = (segment.base + start) // CQ_UNIT.itemsize + np.arange(count)
        keep = (units["size"] != PRE_BLANK_SIZE) & (units["phys_offset"] < segment.limit)
        yield {
            "topic": segment.topic,
            "queue_id": segment.queue_id,
            "level": segment.queue_id + 1,
            "queue_offset": numbers[keep],
            "phys_offset": units["phys_offset"][keep],
            "record_size": units["size"][keep],
            "tags_code": units["tags_code"][keep],
            "due_ms": units["tags_code"][keep],
            "damage": None,
        }
        if bad.size:
            return


def _read_timer_log(segment: ScanSegment) -> Iterator[Values]:
    for start, units in _blocks(segment, TIMER_UNIT):
        bad = np.flatnonzero(units["size"] != UNIT_BYTES)
        count = int(bad[0]) if bad.size else int(units.size)
        pos = segment.base + start + np.arange(count) * UNIT_BYTES
        units = units[:count]
        keep = units["phys_offset"] < segment.limit
        units, pos = units[keep], pos[keep]
        yield {
            "pos": pos,
            "slot_ms": units["write_ms"] + units["delay_ms"],
        } | {name: units[name] for name in _TIMER_NAMES}
        if bad.size:
            return


_TIMER_NAMES = (
    "prev_pos",
    "magic",
    "write_ms",
    "phys_offset",
    "record_size",
    "topic_hash",
    "due_ms",
)


def _read_wheel(segment: ScanSegment) -> Iterator[Values]:
    size, entry = TIMER_SLOT.itemsize, Entry(segment.path, segment.size)
    for first, stored in segment.root.data_parts(entry, segment.start):
        end = min(-(-stored // size) * size, segment.end)
        part = replace(segment, start=first // size * size, end=end)
        for start, slots in _blocks(part, TIMER_SLOT):
            used = np.flatnonzero(slots["tick"] > 0)
            slots = slots[used]
            yield {"slot": start // size + used} | {
                name: slots[name] for name in ("tick", "first_pos", "last_pos", "num")
            }


def _read_index(segment: ScanSegment) -> Iterator[Values]:
    data = segment.root.read(segment.path, 0, segment.size)
    if data.size < INDEX_HEADER.itemsize:
        return
    header = HEADER.unpack_from(data.data)
    begin_ms, count = header[0], header[5]
    slots = find_shape(data, np.frombuffer(data[: INDEX_HEADER.itemsize], INDEX_HEADER)[0])
    if slots is None:
        return
    start = INDEX_HEADER.itemsize + slots * 4
    room = (data.size - start) // INDEX_ITEM.itemsize
    block = data[start : start + min(count, room) * INDEX_ITEM.itemsize]
    items = native_columns(np.frombuffer(block, INDEX_ITEM))[1:]
    keep = items["phys_offset"] < segment.limit
    yield {
        "file": segment.path,
        "item": (np.flatnonzero(keep) + 1).astype(np.int32),
        "key_hash": items["key_hash"][keep],
        "phys_offset": items["phys_offset"][keep],
        "store_ms": begin_ms + items["time_diff_s"][keep].astype(np.int64) * 1_000,
    }


READERS: Final[Mapping[str, Callable[[ScanSegment], Iterator[Values]]]] = {
    "consume_queue": _read_queue,
    "schedule": _read_queue,
    "timer_log": _read_timer_log,
    "timer_wheel": _read_wheel,
    "index": _read_index,
}


# -- cursors ------------------------------------------------------------------------------------


def read_cursors(root: Root) -> Iterator[Values]:
    """Yield a row for each position in a broker's files; unreadable files are findings."""
    store = root.url
    with suppress(*BAD_INPUT):
        levels = read_json(root, OFFSETS_FILE).get("offsetTable", {})
        for level, offset in levels.items():
            yield _cursor(store, "level", str(level), int(level) - 1, offset)
    with suppress(*BAD_INPUT):
        for name, queue_id, offset in group_offsets(read_json(root, GROUPS_FILE)):
            yield _cursor(store, "consumer", name, queue_id, offset)
    with suppress(*BAD_INPUT):
        for name, value in (read_check(root) or {}).items():
            yield _cursor(store, "timer", name, 0, value)


def group_offsets(saved: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (topic@group, queue id, offset) of consumerOffset.json.

    Raises:
        ValueError, TypeError, AttributeError: The file is malformed.
    """
    for name, queues in saved.get("offsetTable", {}).items():
        for queue_id, offset in queues.items():
            yield str(name), int(queue_id), int(offset)


def _cursor(store: str, kind: str, name: str, queue_id: int, value: Any) -> Values:
    return {"store": store, "kind": kind, "name": name, "queue_id": queue_id, "value": int(value)}
