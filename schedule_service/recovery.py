"""Recovery of the levels' progress after a clean stop, a kill or a power cut.

Recovery has two sources. `delayOffset.json` is Apache's: level -> next queue offset. DueMQ adds

    commitLogOffset   end of the log when the table was taken; Apache ignores it
    logGeneration     number of the log's last truncation at that time
    lastRecord        log offset and checksum of the last record before commitLogOffset
    deliveredAhead    delivered ranges after the next offset (stored later, due earlier)
    crc32             checksum of the members and the offsets, without logGeneration

and writes the file after the log is synced up to that offset. The other source is the log: every
delivery names its origin. A start therefore finds

    queue      [ delivered by the table ][ ? ? ? ? ? ? ? ? ? ][ new ]
    log        ..........................^commitLogOffset.........end
                                       origins found here are delivered, the others are pending

The table is proved if its checksum is right, and the log has the record that it names: another
program has not changed it, and it is this store's. Otherwise it counts as lost.

If the table is lost, the whole retained log is scanned: a delivery is after its origin, and
retention removes the log from its start, so the delivery of a unit that is still in the queue is
still in the log. An Apache broker writes no origins: its offsets, and those that `delayLevels.json`
("adopted") has of it, are claims, which `apache_deliveries` proves.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field
from msgspec.structs import replace

from delayed_delivery.ownership import JournalEntry
from delayed_delivery.ownership_projection import changes_of
from duemq_common.json_dialect import backup_path, dumps, load_config, loads
from message_store.ranges import distinct
from message_store.recovery.log_identity import NO_RECORD, LastRecord
from message_store.store import MessageStore
from schedule_service.apache_deliveries import settle_delivered
from schedule_service.cursor import (
    NEVER_MS,
    SEGMENTS_MAX,
    LevelCursor,
    Range,
    cursor_of,
    find_cuts,
    joined_ranges,
)
from schedule_service.queues import ScheduleQueues
from schedule_service.undelivered import CHUNK_UNITS, Offsets, Undelivered

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
OFFSETS_FILE = "delayOffset.json"
ORIGINS_MAX = 8_000_000  # maximum origins in memory while the log is scanned


class Saved(Struct, frozen=True):
    """Contents of delayOffset.json.

    Attributes:
        offsets: Level to the first queue offset that is not delivered.
        ahead: Level to delivered ranges after that, ascending.
        log_offset: End of the log when the table was taken; None: written by Apache.
        settled: Level to ranges after `offsets` that were settled before their due time.
        generation: Number of the log's last truncation.
        last_record: Log offset and checksum of the last record before `log_offset`.
        has_checksum: False if DueMQ 0.1.0 wrote the table, which is not used then.
    """

    offsets: Mapping[int, int] = field(default_factory=dict)
    ahead: Mapping[int, list[Range]] = field(default_factory=dict)
    log_offset: int | None = None
    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    settled: Mapping[int, list[Range]] = field(default_factory=dict)
    generation: int = 0
    last_record: LastRecord = NO_RECORD
    has_checksum: bool = True


def decode_saved(value: Any) -> Saved:
    """Return the contents of a parsed delayOffset.json, of 4.8.0 to 5.3.3 or DueMQ.

    Raises:
        ValueError, TypeError, AttributeError: The file is malformed.
    """
    version = value.get("dataVersion") or {}
    ahead, settled = _ranges(value, "deliveredAhead"), _ranges(value, "settledAhead")
    offsets = {int(level): int(offset) for level, offset in value["offsetTable"].items()}
    if any(level < 1 or offset < 0 for level, offset in offsets.items()):
        raise ValueError("a level below 1 or an offset below 0")
    log_offset = value.get("commitLogOffset")
    saved = Saved(
        offsets,
        ahead,
        None if log_offset is None else int(log_offset),
        int(version.get("counter", 0)),
        int(version.get("stateVersion", 0)),
        int(version.get("timestamp", 0)),
        settled,
        int(value.get("logGeneration", 0)),
        LastRecord(*map(int, value.get("lastRecord", NO_RECORD))),
    )
    if saved.log_offset is None:
        return saved
    if "crc32" not in value:
        return replace(saved, has_checksum=False)
    if value["crc32"] != _crc(saved):
        raise ValueError("its crc32 does not match its contents: another program has changed them")
    return saved


def _crc(saved: Saved) -> int:
    """Return the checksum of a table without its generation, which a replica replaces."""
    saved = replace(saved, generation=0)
    return zlib.crc32(dumps(_members(saved)).encode())


def _ranges(value: Any, name: str) -> dict[int, list[Range]]:
    return {
        int(level): [(int(first), int(end)) for first, end in ranges]
        for level, ranges in (value.get(name) or {}).items()
    }


def load_saved(store: MessageStore) -> Saved | None:
    """Return the table of delayOffset.json, None if there is none.

    The backup, one write older, is returned if the log was truncated to before the file's offset.

    Raises:
        CorruptStore: Neither the file nor its backup can be read.
    """
    path = store.config_path(OFFSETS_FILE)
    newest = load_config(path, decode_saved)
    if newest is None or is_supported(store, newest):
        return newest
    try:
        older = decode_saved(loads(backup_path(path).read_text("utf-8", "replace")))
    except (OSError, ValueError, TypeError, LookupError, AttributeError):
        return newest
    return older if older.log_offset is not None and is_supported(store, older) else newest


def is_supported(store: MessageStore, saved: Saved) -> bool:
    """Return whether the log before the table's offset is the one of which the table was taken."""
    if saved.log_offset is None:
        return True
    is_unchanged = saved.log_offset <= store.unchanged_end(saved.generation)
    is_proved = saved.has_checksum and is_unchanged
    return is_proved and saved.last_record == store.record_identity(saved.last_record.offset)


def encode_saved(saved: Saved) -> str:
    """Return the text of delayOffset.json as 5.3.3 writes it, with DueMQ's members."""
    return dumps({"crc32": _crc(saved), **_members(saved)})


def _members(saved: Saved) -> dict[str, object]:
    """Return the members that the checksum covers, in the order of the file."""
    members: dict[str, object] = {
        "commitLogOffset": saved.log_offset,
        "dataVersion": {
            "counter": saved.counter,
            "stateVersion": saved.state_version,
            "timestamp": saved.timestamp_ms,
        },
        "logGeneration": saved.generation,
        "lastRecord": list(saved.last_record),
        "deliveredAhead": {level: saved.ahead[level] for level in sorted(saved.ahead)},
    }
    if saved.settled:
        members["settledAhead"] = {n: saved.settled[n] for n in sorted(saved.settled)}
    members["offsetTable"] = {level: saved.offsets[level] for level in sorted(saved.offsets)}
    return members


def saved_of(
    cursors: Iterable[LevelCursor],
    log_offset: int,
    before: Saved,
    floors: Mapping[int, int] | None = None,
    *,
    generation: int = 0,
    last_record: LastRecord = NO_RECORD,
) -> Saved:
    """Return the table to save for cursors that include every delivery before `log_offset`.

    Args:
        floors: Level to the current maximum of Apache's offset; the cursor may be after it.
        generation: Number of the log's last truncation.
        last_record: Last record before `log_offset`.
    """
    offsets, ahead, settled = dict(before.offsets), {}, {}
    for cursor in cursors:
        reached = cursor.first_undelivered
        floor = min((floors or {}).get(cursor.level, reached), reached)
        offsets[cursor.level] = floor
        passed = [(floor, reached)] if floor < reached else []
        if passed or cursor.delivered_ahead():
            ahead[cursor.level] = passed + cursor.delivered_ahead()
        if cursor.settled:
            settled[cursor.level] = cursor.settled_ranges()
    return replace(
        before,
        offsets=offsets,
        ahead=ahead,
        log_offset=log_offset,
        settled=settled,
        generation=generation,
        last_record=last_record,
    )


class Start(Struct, frozen=True):
    """Plan of a recovery: the table to use, and the log offset to scan from.

    Attributes:
        covers_journal: Whether the table covers every transfer and return before its log offset.
        claims: Level to an offset of an Apache broker, which `settle_delivered` proves; None if the
            table is proved.
    """

    saved: Saved
    scan_from: int
    covers_journal: bool = False
    claims: Mapping[int, int] | None = None


def plan_start(
    saved: Saved | None,
    adopted: Mapping[int, int] | None,
    *,
    log_min: int,
    log_end: int,
    is_supported: bool,
) -> Start:
    """Return the table that recovery uses, and the log offset from which it scans.

    Args:
        saved: Contents of delayOffset.json, None if it is lost.
        adopted: Offsets of delayLevels.json, None if DueMQ never ran on this store.
        is_supported: Result of `is_supported`.
    """
    claims = dict(adopted or {})
    if saved is None or (saved.log_offset is not None and not is_supported):
        return Start(Saved(), log_min, claims=claims)
    if saved.log_offset is None:  # written by Apache, so it lacks earlier deliveries by DueMQ
        claims |= {n: max(position, claims.get(n, 0)) for n, position in saved.offsets.items()}
        unproved = replace(saved, offsets={})
        return Start(unproved, log_end if adopted is None else log_min, claims=claims)
    return Start(saved, max(saved.log_offset, log_min), covers_journal=True)


def find_start(
    store: MessageStore, adopted: Mapping[int, int] | None, saved: Saved | None
) -> Start:
    """Return the plan of the recovery of an open store; `saved` is the result of `load_saved`."""
    return plan_start(
        saved,
        adopted,
        log_min=store.min_offset,
        log_end=store.max_offset,
        is_supported=saved is None or is_supported(store, saved),
    )


def limited(saved: Saved, ends: Mapping[int, int]) -> Saved:
    """Return `saved` with offsets limited to the ends of the queues.

    A queue that was lost with all its records begins again at 0; the offsets of an old table
    must not apply to its new messages.
    """
    offsets = {
        level: min(position, ends.get(level, 0)) for level, position in saved.offsets.items()
    }
    ahead, settled = _limited_ranges(saved.ahead, ends), _limited_ranges(saved.settled, ends)
    same = ahead == dict(saved.ahead) and settled == dict(saved.settled)
    if same and offsets == dict(saved.offsets):
        return saved
    return replace(saved, offsets=offsets, ahead=ahead, settled=settled)


def _limited_ranges(
    table: Mapping[int, list[Range]], ends: Mapping[int, int]
) -> dict[int, list[Range]]:
    return {
        level: [(low, min(high, ends[level])) for low, high in ranges if low < ends[level]]
        for level, ranges in table.items()
        if level in ends
    }


def undelivered_ranges(entry: int, ahead: Iterable[Range], first: int, end: int) -> list[Range]:
    """Return the undelivered ranges of a queue with the units first..end.

    Args:
        entry: Saved offset of the level; an offset outside the queue is corrected as in Apache.
        ahead: Delivered ranges after it, ascending.
    """
    ranges, position = [], min(max(entry, first), end)
    for low, high in ahead:
        if position < min(low, end):
            ranges.append((position, min(low, end)))
        position = min(max(position, high), end)
    if position < end:
        ranges.append((position, end))
    return ranges


def restore(
    store: MessageStore, queues: ScheduleQueues, start: Start, journal: Sequence[JournalEntry] = ()
) -> dict[int, LevelCursor]:
    """Return a cursor for every level that has a queue.

    Args:
        store: Store whose `scan(from)` yields the log's records.
        journal: Retained records of the ownership journal.
    """
    undelivered = []
    if start.covers_journal:
        reached = start.saved.log_offset or 0
        journal = [entry for entry in journal if entry.phys_offset >= reached]
    for level in queues.levels:
        first, end = queues.bounds(level)
        entry = start.saved.offsets.get(level, 0)
        settled = sorted([*start.saved.ahead.get(level, ()), *start.saved.settled.get(level, ())])
        ranges = undelivered_ranges(entry, settled, first, end)
        # Earlier units were settled without an origin.
        low = first if start.covers_journal else min(max(entry, first), end)
        for change in changes_of(journal, level):
            ranges = change.in_level(ranges, low, end)
        undelivered.append(Undelivered(level, ranges, end))
    for origins in _origins(store, start.scan_from):
        cleared = sum(item.clear(queues, origins) for item in undelivered)
        log.info("the log has %d deliveries that delayOffset.json does not", cleared)
    if start.claims is not None:
        settle_delivered(store, queues, undelivered, start.claims)
    return {item.level: _cursor(queues, item) for item in undelivered}


def _origins(store: MessageStore, scan_from: int) -> Iterator[Offsets]:
    """Yield the origins named in the log from an offset on, in bounded ascending blocks."""
    blocks: list[Offsets] = []
    for rows in store.scan(scan_from):
        prepared = rows["prepared_offset"]
        blocks.append(-(prepared[prepared < 0] + 1))
        if sum(block.size for block in blocks) >= ORIGINS_MAX:
            yield distinct(*blocks)
            blocks = []
    if any(block.size for block in blocks):
        yield distinct(*blocks)


def _cursor(queues: ScheduleQueues, undelivered: Undelivered) -> LevelCursor:
    """Return a cursor whose segments end where due times decrease."""
    pieces: list[Range] = []
    ranges, settled = joined_ranges(undelivered.ranges(), SEGMENTS_MAX // 2)
    last_due_ms = -NEVER_MS
    for count_left, (first, end) in zip(range(len(ranges), 0, -1), ranges, strict=True):
        last_due_ms, start = -NEVER_MS, first
        for offset, due_ms in _due_times(queues, undelivered.level, first, end):
            for cut in find_cuts(due_ms, offset, last_due_ms):
                if len(pieces) + count_left < SEGMENTS_MAX:
                    pieces.append((start, cut.offset))
                    start = cut.offset
            last_due_ms = int(due_ms[-1])
        pieces.append((start, end))
    cursor = cursor_of(undelivered.level, pieces, undelivered.end)
    cursor.settled = settled
    if pieces and pieces[-1][1] == undelivered.end:
        cursor.last_due_ms = last_due_ms
    return cursor


def _due_times(
    queues: ScheduleQueues, level: int, offset: int, end: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    while offset < end:
        units = queues.units(level, offset, min(CHUNK_UNITS, end - offset))
        if not units.size:
            return
        yield offset, queues.due_ms(level, units)
        offset += int(units.size)
