"""Marks: the records that say which queue ranges changed their owner, and when. One a step.

    topic DUEMQ_MIGRATION, queue 0:   route   handover   handover ...   giveback ...   state

A mark is the step: it is in the log or it is not. Everything else (cursors, timer units, counts,
ledgers) is a fold over the marks, in the order of this queue. This module knows how marks look
on the disk and nothing of what is done with them; ranges are of queue offsets of a level's queue.

    Handover   the timers own a range from now on, but for what was settled ahead
    Giveback   the level owns these ranges again, but for what was settled meanwhile
    Route      new messages of a level become timers from here on, or no longer
    StateMark  the migration of a level went from one state to another
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from message_store.batch import PutBatch
from message_store.errors import MarkRefused, RecordUnreadable
from message_store.quarantine import NO_HOST
from message_store.ranges import Range, minus, within

log = logging.getLogger(__name__)
MARK_TOPIC: Final = "DUEMQ_MIGRATION"
MARK_QUEUE: Final = 0
RANGES_MAX: Final = 1_000  # in one mark; a step with more is cut
NO_END: Final = 1 << 62
READ_UNITS: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A range of a level's queue belongs to the timers.

    Attributes:
        excluded: ranges of it that were settled ahead (cancelled, moved, fired): nobody's.
        count: messages that change their owner; checksum: of them, see `migration.checksum`.
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
class Giveback:
    """A range of a level's queue belongs to the timers no more.

    Attributes:
        pending: what of it still waited with them: it belongs to the level again; `count`
            messages with this checksum.
        gone, gone_sum: the same of what had been settled meanwhile: nobody's.
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
class StateMark:
    """The migration of a level went from `source` to `target`."""

    migration: str
    level: int
    source: str
    target: str
    who: str = ""
    why: str = ""


Mark = Handover | Giveback | Route | StateMark
KINDS: Final[Mapping[str, type[Mark]]] = {
    "handover": Handover,
    "giveback": Giveback,
    "route": Route,
    "state": StateMark,
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
        ValueError, TypeError, KeyError, AttributeError: It is none.
    """
    value = json.loads(body)
    kind = KINDS[value.pop("kind")]
    for name in ("excluded", "pending"):
        if name in value:
            value[name] = tuple((int(first), int(end)) for first, end in value[name])
    if "promised" in value:
        value["promised"] = {int(at): int(due_ms) for at, due_ms in value["promised"].items()}
    return kind(**value)


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
        raise MarkRefused(batch.remarks.get(0, "the store is not writable"))
    return Marked(int(row["queue_offset"]), int(row["phys_offset"]), int(row["store_ms"]), mark)


def bounds(store: Any) -> Range:
    """Return the first queue offset of the marks that are retained, and their end."""
    first, end = store.queue_bounds(MARK_TOPIC, MARK_QUEUE)
    return int(first), int(end)


def read(store: Any, start: int = 0) -> Iterator[Marked]:
    """Yield the retained marks from a queue offset on, in order; damaged ones are told and left.

    A mark lies behind the records it speaks of: where retention took it, they are gone, too.
    """
    first, end = bounds(store)
    at = max(start, first)
    while at < end:
        units = store.units(MARK_TOPIC, MARK_QUEUE, at, min(READ_UNITS, end - at))
        for number, unit in enumerate(units):
            found = _read_one(store, at + number, int(unit["phys_offset"]))
            if found is not None:
                yield found
        at += max(int(units.size), 1)


def _read_one(store: Any, at: int, phys_offset: int) -> Marked | None:
    try:
        record = store.read_record(phys_offset)
        return Marked(at, phys_offset, record.store_ms, decode(record.body))
    except (RecordUnreadable, ValueError, TypeError, LookupError, AttributeError) as error:
        log.error("%s: the mark at queue offset %d cannot be read: %s", MARK_TOPIC, at, error)
        return None


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
        if isinstance(mark, Handover):
            ranges = mark.ranges
            self._remove(mark.level, ranges)
            pieces = self.pieces.setdefault(mark.level, [])
            is_behind = not pieces or not ranges or pieces[-1][1] <= ranges[0][0]
            pieces += [(first, end, marked.at) for first, end in ranges]
            if not is_behind:
                pieces.sort()
            if mark.promised:
                self.promised.setdefault(mark.level, {}).update(mark.promised)
        elif isinstance(mark, Giveback):
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
        assert isinstance(mark, Handover)
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
