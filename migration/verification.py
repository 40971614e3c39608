"""Both sides of a level counted: what the marks say went over is what the timers had, to the bit.

    went over (marks)  =  came back, or was settled when its range came back (marks)
                          +  was settled since (origins in the log)  +  waits with the timers

Counts and checksums (`migration.checksum`) of each; the sums do not depend on any order. It reads
the commit log once and the level's queue once, in bounded pieces, and changes nothing. Between two
pieces other work may be done: a message is asked for once whether it waits, and the log is read
behind that, so one that is delivered meanwhile is counted once. Nothing of the level may be handed
over or given back while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.ranges import Range
from migration.checksum import checksum, minus, plus
from migration.fold import FoldedLevel
from schedule_service.delivery import Level
from timer_store.level_records import PRE_BLANK_SIZE
from timer_store.names import SCHEDULE_TOPIC

PIECE_UNITS = 16_384
NOWHERE = -1
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tally:
    """Messages and the checksum of them."""

    count: int = 0
    sum: int = 0

    def plus(self, other: Tally) -> Tally:
        """Return both together."""
        return Tally(self.count + other.count, plus(self.sum, other.sum))

    def minus(self, other: Tally) -> Tally:
        """Return what is left without the other."""
        return Tally(self.count - other.count, minus(self.sum, other.sum))


@dataclass(frozen=True, slots=True)
class Verified:
    """One level.

    Attributes:
        level_pending: with the level service; timers_pending: with the timers, where they lie.
        settled: handed over and delivered, cancelled, moved or in quarantine since.
        handed, returned, gone: what the marks say.
    """

    level: int
    level_pending: Tally
    timers_pending: Tally
    settled: Tally
    handed: Tally
    returned: Tally
    gone: Tally

    @property
    def is_right(self) -> bool:
        """Whether it adds up."""
        rest = self.handed.minus(self.returned).minus(self.gone)
        return rest == self.timers_pending.plus(self.settled)


class Verification:
    """Counts one level, a bounded piece at a time.

    Args: see `migration.drain.Drain`.
    """

    def __init__(self, levels: Any, timers: Any, store: Any, level: int, folded: FoldedLevel):
        self._levels, self._timers, self._store = levels, timers, store
        self._level, self._folded = level, folded
        self.found: Verified | None = None

    def pieces(self) -> Iterator[int]:
        """Do the work; yield how many units each piece had. `found` says the result at the end."""
        mine = Tally()
        held = self._levels.levels.get(self._level, Level.empty(self._level)).cursor
        ranges = [(s.appended, s.end) for s in held.segments if s.pending]
        settled = held.settled.copy()
        for numbers, units, due_ms in self._units(ranges):
            kept = ~np.isin(numbers, list(settled))
            mine = mine.plus(_tally(units["phys_offset"][kept], due_ms[kept]))
            yield int(units.size)
        waiting, owned = Tally(), Tally()
        gone: list[tuple[Offsets, Offsets]] = []
        for low, high in self._timers.handovers.owned.of(self._level):
            for first in range(low, high, PIECE_UNITS):
                end = min(first + PIECE_UNITS, high)
                rows, _ = self._timers.handovers.owned_rows(self._level, first, end)
                rows = rows[self._timers.decisions.places(rows) != NOWHERE]
                waiting = waiting.plus(_tally(rows["phys_offset"], rows["due_ms"]))
                for _, units, due_ms in self._units([(first, end)]):
                    left = ~np.isin(units["phys_offset"], rows["phys_offset"])
                    gone.append((units["phys_offset"][left], due_ms[left]))
                yield end - first
        origins = self._origins()
        for phys_offset, due_ms in gone:
            done = np.isin(phys_offset, origins)
            owned = owned.plus(_tally(phys_offset[done], due_ms[done]))
            yield int(phys_offset.size)
        folded = self._folded
        self.found = Verified(
            self._level, mine, waiting, owned, Tally(folded.handed, folded.handed_sum),
            Tally(folded.returned, folded.returned_sum), Tally(folded.gone, folded.gone_sum),
        )  # fmt: skip

    def _origins(self) -> Offsets:
        """Return the log offsets that records of the log name as their origin, ascending."""
        found = [np.empty(0, np.int64)]
        for rows in self._store.scan(self._store.min_offset):
            prepared = rows["prepared_offset"]
            found.append(-(prepared[prepared < 0] + 1))
        return np.unique(np.concatenate(found))

    def _units(self, ranges: list[Range]) -> Iterator[tuple[Offsets, Any, Offsets]]:
        """Yield (queue offsets, units, due times) of messages in ranges of the level's queue."""
        promised = self._timers.handovers.owned.promised.get(self._level, {})
        for low, high in ranges:
            first = low
            while first < high:
                count = min(PIECE_UNITS, high - first)
                units = self._store.units(SCHEDULE_TOPIC, self._level - 1, first, count)
                if not units.size:
                    break
                due_ms = units["tags_code"].copy()
                for at, time_ms in promised.items():
                    if first <= at < first + units.size:
                        due_ms[at - first] = time_ms
                messages = units["size"] != PRE_BLANK_SIZE
                yield (
                    np.arange(first, first + units.size)[messages],
                    units[messages],
                    due_ms[messages],
                )
                first += int(units.size)


def _tally(phys_offset: Offsets, due_ms: Offsets) -> Tally:
    return Tally(int(phys_offset.size), checksum(phys_offset, due_ms))
