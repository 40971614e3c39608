"""Cursor of a level: delivered ranges of its queue, next due time. No I/O, no clock.

A level's queue is in order of arrival, which is due order while the delay is fixed. After the level
was shortened or the clock was set back, a unit can be due before its predecessor. There the queue
is divided into segments, so that the units before do not delay it:

    queue offset   0 ......... 40 ......... 55 ........ 80
    due (minute)   60, 61, 62, ... | 12, 13, 14, ... | 12:40, ...
                   segment 0         segment 1         segment 2  (open: new units join it)
                     delivered to 3    delivered to 55   delivered to 60

Within a segment, due times do not decrease, and units are delivered in order. A finished
segment is dropped, so a level nearly always has one segment. A queue has at most SEGMENTS_MAX
segments; after that, new units join the last segment and may be late (never early) by as much as
the clock was set back.

For each segment:  appended <= submitted <= end.
    appended    all units before it are in the log (delivered or in quarantine)
    submitted   all units before it were passed to the deliverer
    end         queue offset after its last unit

Units that were cancelled, moved or fired before their due time are `settled`: delivery skips them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct

SEGMENTS_MAX = 1_024
NEVER_MS = (1 << 63) - 1
Range = tuple[int, int]


class Segment(Struct):
    """Consecutive units whose due times do not decrease."""

    appended: int
    submitted: int
    end: int
    head_due_ms: int = NEVER_MS  # due time of the unit at `submitted`

    @property
    def pending(self) -> int:
        """Units not delivered yet."""
        return self.end - self.appended

    def can_prepend(self, due_ms: int) -> bool:
        """Return whether a unit may be prepended: none is in flight or due before `due_ms`."""
        return self.pending > 0 and self.appended == self.submitted and due_ms <= self.head_due_ms


class Cut(Struct, frozen=True):
    """A unit that is due before its predecessor."""

    offset: int
    due_ms: int


def find_cuts(due_ms: npt.NDArray[np.int64], first_offset: int, last_due_ms: int) -> list[Cut]:
    """Return the units that are due before their predecessor.

    Args:
        last_due_ms: Due time of the unit before `first_offset`.
    """
    before = np.concatenate([[last_due_ms], due_ms[:-1]]) if due_ms.size else due_ms
    indexes = np.flatnonzero(due_ms < before)
    return [Cut(first_offset + i, int(due_ms[i])) for i in indexes.tolist()]


class LevelCursor:
    """Cursor of one level: its segments in queue order; the last one is open."""

    def __init__(self, level: int, start: int = 0) -> None:
        self.level = level
        self.segments: list[Segment] = [Segment(start, start, start)]
        self.last_due_ms = -NEVER_MS  # due time of the newest unit
        self.settled: set[int] = set()  # queue offsets in the undelivered parts of segments
        self.merged = 0  # number of cuts that were not made because of SEGMENTS_MAX

    @property
    def end(self) -> int:
        """Queue offset after the newest unit."""
        return self.segments[-1].end

    @property
    def pending(self) -> int:
        """Number of pending messages; exact."""
        return self.undelivered - len(self.settled)

    @property
    def undelivered(self) -> int:
        """Number of units that are not delivered yet, including settled ones."""
        return sum(segment.pending for segment in self.segments)

    def is_pending(self, offset: int) -> bool:
        """Return whether a unit is neither delivered nor settled."""
        if offset in self.settled:
            return False
        return any(segment.appended <= offset < segment.end for segment in self.segments)

    def are_pending(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which units, (n,) i8 queue offsets, are neither delivered nor settled."""
        firsts = [segment.appended for segment in self.segments]
        ends = np.array([segment.end for segment in self.segments], np.int64)
        number = np.searchsorted(firsts, offsets, "right") - 1
        are_pending = (number >= 0) & (offsets < ends[number])
        if self.settled:
            are_pending &= [offset not in self.settled for offset in offsets.tolist()]
        return np.asarray(are_pending)

    def settle_all(self, offsets: npt.NDArray[np.int64]) -> None:
        """Settle pending units, (n,) i8 queue offsets, so that delivery skips them."""
        assert self.are_pending(offsets).all()
        self.settled.update(offsets.tolist())

    def settle(self, offset: int) -> None:
        """Settle a pending unit, so that delivery skips it."""
        assert self.is_pending(offset)
        self.settled.add(offset)

    def settled_in(self, first: int, count: int) -> npt.NDArray[np.bool_] | None:
        """Return which of `count` units from `first` on are settled, None if none is."""
        if not self.settled:
            return None
        return np.array([index in self.settled for index in range(first, first + count)], np.bool_)

    def settled_count(self, first: int, end: int) -> int:
        """Return the number of settled units of the range first..end."""
        if len(self.settled) < end - first:
            return sum(first <= offset < end for offset in self.settled)
        return len(self.settled.intersection(range(first, end)))

    def first_unsettled(self, segment: Segment) -> int:
        """Return the first unit that is neither submitted nor settled, else the segment's end."""
        position = segment.submitted
        while position < segment.end and position in self.settled:
            position += 1
        return position

    def settled_ranges(self) -> list[Range]:
        """Return the settled units as ranges, ascending."""
        settled = np.sort(np.fromiter(self.settled, np.int64, len(self.settled)))
        is_first = np.ones(settled.size, np.bool_)
        is_first[1:] = np.diff(settled) != 1
        firsts, ends = settled[is_first], settled[np.roll(is_first, -1)] + 1
        return list(zip(firsts.tolist(), ends.tolist(), strict=True))

    def _pass_settled(self, first: int, end: int) -> int:
        """Forget the settled units of a range that the cursor has passed; return their number."""
        if not self.settled:
            return 0
        passed = self.settled.intersection(range(first, end))
        self.settled -= passed
        return len(passed)

    @property
    def next_due_ms(self) -> int:
        """Due time of the next unit that is not submitted; NEVER_MS if there is none."""
        segments = self.segments
        if len(segments) == 1:
            return segments[0].head_due_ms
        return self.next_segment().head_due_ms

    @property
    def first_undelivered(self) -> int:
        """First queue offset that is not delivered: Apache's delay offset."""
        return next((s.appended for s in self.segments if s.pending), self.end)

    def delivered_ahead(self) -> list[Range]:
        """Return the delivered ranges after `first_undelivered`, ascending."""
        undelivered = [(s.appended, s.end) for s in self.segments if s.pending]
        ends = [*undelivered, (self.end, self.end)]
        pairs = pairwise(ends)
        return [(left[1], right[0]) for left, right in pairs if left[1] < right[0]]

    def extend(self, first: int, first_due_ms: int, end: int, cuts: Iterable[Cut] = ()) -> None:
        """Add units first..end, whose due times decrease only at `cuts`.

        `first` is at or after the current end; queue offsets between them have no unit.
        """
        last = self.segments[-1]
        assert last.end <= first < end
        if last.appended == last.end:  # nothing is pending
            last.appended = last.submitted = last.end = first
        if last.submitted == last.end:
            last.head_due_ms = first_due_ms
        last.end = end
        for cut in cuts:
            self._cut(cut)

    def _cut(self, cut: Cut) -> None:
        last = self.segments[-1]
        if cut.offset <= last.appended:
            return
        if len(self.segments) >= SEGMENTS_MAX:
            self.merged += 1
            return
        new = Segment(cut.offset, cut.offset, last.end, cut.due_ms)
        last.end = cut.offset
        if last.submitted == last.end:
            last.head_due_ms = NEVER_MS
        self.segments.append(new)
        self._drop_finished()

    def submit(self, segment: Segment, count: int, next_due_ms: int) -> None:
        """Record that `count` units are submitted; the next unit is due at `next_due_ms`."""
        assert segment.submitted + count <= segment.end
        segment.submitted += count
        segment.head_due_ms = next_due_ms if segment.submitted < segment.end else NEVER_MS

    def next_segment(self) -> Segment:
        """Return the segment whose next unit is due first."""
        return min(self.segments, key=lambda segment: segment.head_due_ms)

    def advance(self, segment: Segment, appended: int) -> None:
        """Advance a segment to `appended`; all units before it are in the log."""
        assert segment.appended <= appended <= segment.submitted
        self._pass_settled(segment.appended, appended)
        segment.appended = appended
        self._drop_finished()

    def pass_transferred(self, segment: Segment, end: int, next_due_ms: int) -> None:
        """Advance past transferred units at the front of a segment; none of them is in flight."""
        assert segment.appended == segment.submitted < end <= segment.end
        self._pass_settled(segment.appended, end)
        segment.appended = segment.submitted = end
        segment.head_due_ms = next_due_ms if end < segment.end else NEVER_MS
        self._drop_finished()

    @property
    def all_appended(self) -> bool:
        """Whether all submitted units are in the log."""
        return all(segment.appended == segment.submitted for segment in self.segments)

    def reopen(self, first: int, end: int, cuts: Iterable[Cut], due_ms: tuple[int, int]) -> None:
        """Make the units first..end, which are before the cursor, pending again.

        Args:
            cuts: Units of the range that are due before their predecessor.
            due_ms: Due times of the first and the last unit.
        """
        assert first < end <= self.end
        number = sum(segment.end <= first for segment in self.segments)
        assert number == len(self.segments) or end <= self.segments[number].appended
        starts = [(first, due_ms[0]), *((cut.offset, cut.due_ms) for cut in cuts)]
        if len(self.segments) + len(starts) > SEGMENTS_MAX:
            self.merged += len(starts) - 1
            starts = starts[:1]
        ends = [start for start, _ in starts[1:]] + [end]
        pieces = [
            Segment(start, start, stop, head)
            for (start, head), stop in zip(starts, ends, strict=True)
        ]
        after = self.segments[number] if number < len(self.segments) else None
        if after is not None and after.appended == end and after.can_prepend(due_ms[1]):
            after.appended = after.submitted = pieces[-1].appended
            after.head_due_ms = pieces.pop().head_due_ms
        self.segments[number:number] = pieces
        self._drop_finished()

    def forget_before(self, queue_min: int) -> int:
        """Advance past units that retention removed; return how many of them were undelivered."""
        lost = 0
        for segment in self.segments:
            if segment.appended < queue_min:
                start = min(queue_min, segment.end)
                passed = self._pass_settled(segment.appended, start)
                lost += start - segment.appended - passed
                segment.appended = start
                if segment.submitted < start:
                    segment.submitted = start
                    segment.head_due_ms = NEVER_MS  # unknown; the caller reads it
        last = self.segments[-1]
        if last.end < queue_min:
            last.appended = last.submitted = last.end = queue_min
        self._drop_finished()
        return lost

    def _drop_finished(self) -> None:
        if len(self.segments) > 1:
            last = self.segments[-1]
            self.segments = [s for s in self.segments if s.pending or s is last]


def joined_ranges(undelivered: Sequence[Range], ranges_max: int) -> tuple[list[Range], set[int]]:
    """Join ranges until at most `ranges_max` remain; return them and the units between joined ones.

    The smallest gaps are filled: a small gap is a single decision, a large one many deliveries.
    """
    sizes = sorted((right[0] - left[1] for left, right in pairwise(undelivered)), reverse=True)
    least = sizes[ranges_max - 1] if len(sizes) >= ranges_max else 0
    ranges: list[Range] = list(undelivered[:1])
    filled: set[int] = set()
    for first, end in undelivered[1:]:
        before = ranges[-1]
        if first - before[1] > least:
            ranges.append((first, end))
        else:
            filled.update(range(before[1], first))
            ranges[-1] = (before[0], end)
    return ranges, filled


def cursor_of(level: int, undelivered: Sequence[Range], end: int) -> LevelCursor:
    """Return a cursor whose undelivered units are exactly the ranges in `undelivered`.

    The caller passes at most SEGMENTS_MAX ranges and reads the due time of each segment's first
    unit.
    """
    cursor = LevelCursor(level, end)
    if undelivered:
        cursor.segments = [Segment(first, first, stop) for first, stop in undelivered]
    if not undelivered or undelivered[-1][1] < end:
        cursor.segments.append(Segment(end, end, end))
    cursor._drop_finished()
    return cursor
