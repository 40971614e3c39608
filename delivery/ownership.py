"""Ownership journal: records that transfer ranges of a level's queue between levels and timers.

    topic DUEMQ_MIGRATION, queue 0:   route   handover   handover ...   giveback ...   state

A record is a step: it is in the log or it is not. Everything else (cursors, timer units, counts,
ledgers) is a projection of the records, in the order of this queue. This module defines their
format only; ranges are queue offsets of a level's queue.

    Transfer      (`handover`) the timers own a range, except for units settled before
    Return        (`giveback`) the level owns these ranges again, except for units settled meanwhile
    Route         (`route`) new messages of a level become timers, or no longer
    StateRecord   (`state`) the migration of a level changed its state
"""

from __future__ import annotations

import ipaddress
import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from delivery.quarantine import NO_HOST
from message_store.errors import OwnershipRefused, RecordUnreadable
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.queues.topic_table import QUEUES_MAX
from message_store.ranges import Range, joined, minus, within

log = logging.getLogger(__name__)
MARK_TOPIC: Final = "DUEMQ_MIGRATION"
MARK_QUEUE: Final = 0
RANGES_MAX: Final = 1_000  # in one mark; a step with more is cut
NO_END: Final = 1 << 62
READ_UNITS: Final = 1_024
NAME_CHARACTERS_MAX: Final = 4_096
CHECKSUM_MAX: Final = (1 << 64) - 1
SHOWN_CHARACTERS, SHOWN_MAX = 100, 3  # of malformed records, in one notice
STATE_NAMES: Final = frozenset(
    {"planned", "routing", "draining", "verifying", "done", "rolling_back", "rolled_back"}
)
"""States of a migration, as `migration.ownership.states.State` names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A range of a level's queue belongs to the timers.

    Attributes:
        excluded: ranges of it that were settled ahead (cancelled, moved, fired): no owner.
        count: messages that change their owner.
        checksum: of these messages, see `migration.ownership.checksum`.
        promised: due times of units whose tags code is no time, by queue offset.
    """

    migration: str
    level: int
    first: int
    end: int
    excluded: tuple[Range, ...] = ()
    count: int = 0
    checksum: int = 0
    promised: Mapping[int, int] = field(default_factory=dict)

    @property
    def ranges(self) -> list[Range]:
        """What changes its owner."""
        return minus([(self.first, self.end)], self.excluded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """A range of a level's queue belongs to the timers no more.

    Attributes:
        pending: what of it still waited with them: it belongs to the level again; `count`
            messages with this checksum.
        gone, gone_sum: the same of units settled meanwhile: no owner.
    """

    migration: str
    level: int
    first: int
    end: int
    pending: tuple[Range, ...]
    count: int = 0
    checksum: int = 0
    gone: int = 0
    gone_sum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """From here on new messages of a level become timers (`on`), or level messages again.

    Attributes:
        fence: end of the level's queue when it was written; timer_fence: of the timer queue.
        rules: other delays for single topics, topic to ms.
    """

    migration: str
    level: int
    on: bool
    fence: int = 0
    timer_fence: int = 0
    rules: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """The migration of a level went from `source` to `target`."""

    migration: str
    level: int
    source: str
    target: str
    who: str = ""
    why: str = ""


Mark = Transfer | Return | Route | StateRecord
KINDS: Final[Mapping[str, type[Mark]]] = {
    "handover": Transfer,
    "giveback": Return,
    "route": Route,
    "state": StateRecord,
}
_NAMES: Final = {kind: name for name, kind in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark in the log.

    Attributes:
        at: its queue offset; phys_offset: where its record lies.
    """

    at: int
    phys_offset: int
    store_ms: int
    mark: Mark


def encode(mark: Mark) -> bytes:
    """Return the body of a mark's record: compact JSON."""
    fields = {name: getattr(mark, name) for name in mark.__slots__}
    value = {"kind": _NAMES[type(mark)], **fields}
    return json.dumps(value, separators=(",", ":")).encode()


def decode(body: bytes) -> Mark:
    """Return the mark of a body.

    Raises:
        ValueError: It is none, whatever its bytes are.
    """
    try:
        value = json.loads(body)
        kind = KINDS[value.pop("kind")]
        for name in ("excluded", "pending"):
            if name in value:
                value[name] = tuple(map(tuple, value[name]))
        if "promised" in value:
            value["promised"] = {int(at): due_ms for at, due_ms in value["promised"].items()}
        mark = kind(**value)
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no mark: {type(error).__name__}: {error}") from error
    _check(mark)
    return mark


def _check(mark: Mark) -> None:
    """Check the type and the bounds of every field; code that applies records relies on them.

    Raises:
        ValueError: Says which field is malformed.
    """
    for name in mark.__slots__:
        value = getattr(mark, name)
        if name in _CHECKS and not _CHECKS[name](value):
            raise ValueError(f"its field {name!r} is malformed: {str(value)[:SHOWN_CHARACTERS]}")
    if isinstance(mark, Transfer | Return):
        listed = list(mark.excluded if isinstance(mark, Transfer) else mark.pending)
        bounds_of = [(mark.first, mark.end)] if mark.first < mark.end else []
        if mark.first > mark.end or minus(listed, bounds_of) or joined(listed) != listed:
            raise ValueError(f"its ranges are malformed: {mark.first}..{mark.end}")


def _is_number(value: object, low: int = 0, high: int = NO_END) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= NAME_CHARACTERS_MAX


def _are_ranges(value: Any) -> bool:
    return all(len(pair) == 2 and all(map(_is_number, pair)) for pair in value)


def _are_numbers(value: object, keys: Callable[[object], bool]) -> bool:
    return isinstance(value, Mapping) and all(
        keys(key) and _is_number(number) for key, number in value.items()
    )


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("migration", "who", "why"), _is_name),
    **dict.fromkeys(("source", "target"), lambda value: _is_name(value) and value in STATE_NAMES),
    **dict.fromkeys(("first", "end", "count", "gone", "fence", "timer_fence"), _is_number),
    **dict.fromkeys(("checksum", "gone_sum"), partial(_is_number, high=CHECKSUM_MAX)),
    **dict.fromkeys(("excluded", "pending"), _are_ranges),
    "level": partial(_is_number, low=1, high=QUEUES_MAX),
    "on": lambda value: isinstance(value, bool),
    "promised": partial(_are_numbers, keys=_is_number),
    "rules": partial(_are_numbers, keys=_is_name),
}


def marked_of(record: Record, at: int) -> Marked:
    """Return the mark of a record of the topic of marks.

    Args:
        at: Its queue offset.
    Raises:
        ValueError: It is malformed, or a client sent it: a broker's own has no born host.
    """
    if record.born_host != NO_HOST:
        address, port = record.born_host
        raise ValueError(f"a client wrote it: {ipaddress.ip_address(address)}, port {port}")
    return Marked(at, record.phys_offset, record.store_ms, decode(record.body))


def append(store: Any, mark: Mark, now_ms: int) -> Marked:
    """Append a mark; it holds from now on.

    Raises:
        MarkRefused: The store takes no writes; nothing has changed.
    """
    batch = PutBatch(1, 1)
    batch.add(
        topic_index=store.topics.add(MARK_TOPIC),
        queue_id=MARK_QUEUE,
        body=encode(mark),
        properties=b"",
        born_ms=now_ms,
        born_host=NO_HOST,
        store_host=NO_HOST,
    )
    batch.trusted = True
    store.put(batch)
    row = batch.rows[0]
    if row["status"]:
        raise OwnershipRefused(batch.remarks.get(0, "the store is not writable"))
    return Marked(int(row["queue_offset"]), int(row["phys_offset"]), int(row["store_ms"]), mark)


def bounds(store: Any) -> Range:
    """Return the first queue offset of the marks that are retained, and their end."""
    first, end = store.queue_bounds(MARK_TOPIC, MARK_QUEUE)
    return int(first), int(end)


def read(store: Any, start: int = 0, *, quiet: bool = False) -> Iterator[Marked]:
    """Yield the retained marks from a queue offset on, in order; malformed records are skipped.

    A mark comes after the records that it names: where retention took it, they are gone, too.

    Args:
        quiet: Do not report what was skipped: another reader does.
    """
    first, end = bounds(store)
    at = max(start, first)
    skipped_count, skipped = 0, list[str]()
    while at < end:
        units = store.units(MARK_TOPIC, MARK_QUEUE, at, min(READ_UNITS, end - at))
        for number, unit in enumerate(units):
            try:
                found = marked_of(store.read_record(int(unit["phys_offset"])), at + number)
            except (RecordUnreadable, ValueError) as error:
                skipped_count += 1
                if len(skipped) < SHOWN_MAX:
                    skipped.append(f"queue offset {at + number}: {error}"[: 2 * SHOWN_CHARACTERS])
                continue
            yield found
        at += max(int(units.size), 1)
    if skipped_count and not quiet:
        log.error(
            "%s: %d records from queue offset %d on are no marks of a broker and were skipped: %s",
            MARK_TOPIC, skipped_count, max(start, first), "; ".join(skipped),
        )  # fmt: skip


Piece = tuple[int, int, int]  # first, end, queue offset of the handover that made it the timers'


class Ownership:
    """What of the levels' queues belongs to the timers: the fold over handovers and givebacks.

    Attributes:
        pieces: by level, ascending and disjoint.
        at: the next mark to fold.
    """

    def __init__(self) -> None:
        self.pieces: dict[int, list[Piece]] = {}
        self.promised: dict[int, dict[int, int]] = {}
        self.at = 0

    def __bool__(self) -> bool:
        return any(self.pieces.values())

    def fold(self, marked: Marked) -> None:
        """Take a mark in; those before `at` are known already."""
        if marked.at < self.at:
            return
        mark, self.at = marked.mark, marked.at + 1
        if isinstance(mark, Transfer):
            ranges = mark.ranges
            self._remove(mark.level, ranges)
            pieces = self.pieces.setdefault(mark.level, [])
            is_behind = not pieces or not ranges or pieces[-1][1] <= ranges[0][0]
            pieces += [(first, end, marked.at) for first, end in ranges]
            if not is_behind:
                pieces.sort()
            if mark.promised:
                self.promised.setdefault(mark.level, {}).update(mark.promised)
        elif isinstance(mark, Return):
            self._remove(mark.level, [(mark.first, mark.end)])

    def _remove(self, level: int, ranges: list[Range]) -> None:
        left = self.pieces.get(level, [])
        if not left or not ranges:
            return
        low, high = _span(left, ranges[0][0], ranges[-1][1])
        left[low:high] = [
            (first_left, end_left, at)
            for first, end, at in left[low:high]
            for first_left, end_left in minus([(first, end)], ranges)
        ]

    def cut(self, level: int, first: int, end: int) -> None:
        """Take a range off."""
        self._remove(level, [(first, end)])

    def of(self, level: int, first: int = 0, end: int = NO_END) -> list[Range]:
        """Return the ranges of first..end that belong to the timers, neighbours joined."""
        pieces = self.pieces.get(level, [])
        low, high = _span(pieces, first, end)
        found: list[Range] = []
        for first_piece, end_piece, _ in pieces[low:high]:
            if found and found[-1][1] == first_piece:
                found[-1] = (found[-1][0], end_piece)
            else:
                found.append((first_piece, end_piece))
        return within(found, first, end)

    def bounds(self, level: int) -> Range | None:
        """Return from where to where something of a level belongs to the timers, None: nothing."""
        pieces = self.pieces.get(level)
        return (pieces[0][0], pieces[-1][1]) if pieces else None

    def of_mark(self, marked: Marked) -> list[Range]:
        """Return what a handover made the timers' and still is."""
        mark = marked.mark
        assert isinstance(mark, Transfer)
        pieces = self.pieces.get(mark.level, [])
        low, high = _span(pieces, mark.first, mark.end)
        mine = [(first, end) for first, end, at in pieces[low:high] if at == marked.at]
        return within(mine, mark.first, mark.end)

    def owns(self, level: int, offset: int) -> bool:
        """Return whether a unit belongs to the timers."""
        low, high = _span(self.pieces.get(level, []), offset, offset + 1)
        return low < high

    def copy(self) -> Ownership:
        """Return another one that knows the same."""
        twin = Ownership()
        twin.pieces = {level: list(pieces) for level, pieces in self.pieces.items()}
        twin.promised = {level: dict(times) for level, times in self.promised.items()}
        twin.at = self.at
        return twin


def _span(pieces: list[Piece], first: int, end: int) -> Range:
    """Return which of ascending, disjoint pieces have something of first..end: pieces[low:high]."""
    low = bisect_right(pieces, first, key=lambda piece: piece[1])
    return low, max(low, bisect_left(pieces, end, key=lambda piece: piece[0]))
