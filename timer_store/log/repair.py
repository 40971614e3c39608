"""Repair of timer log and wheel after a crash.

repair    truncate the log to the snapshot's end; walk back slots that point after it
recount   count slots again whose timers were settled after the snapshot
check     check that every needed slot points at one of its own units
relink    otherwise: link all slots again from the log, and correct wrong pointers in it

`check` and `relink` also repair the files of an Apache broker after a power cut: slots that point
after the end of the log, chains that lead into another slot, gaps.

Source: TimerMessageStore.recover, recoverAndRevise, reviseQueueOffset
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from duemq_common.errors import CorruptStore
from timer_store import layout
from timer_store.kernels import chain
from timer_store.kernels import wheel as kernels
from timer_store.layout import NO_OFFSETS, UNIT_BYTES, Offsets, Rows
from timer_store.log.chain_check import (
    chain_error,
    check_slots,
    cursors_of,
)
from timer_store.log.timer_log import REMEDY, TimerLog, UnitFile
from timer_store.log.wheel import TimerWheel

FINDINGS_MAX: Final = 20
RELINK_UNITS: Final = 1 << 18  # units that are read ahead
FIXES_MAX: Final = 1 << 16


class Relinked(NamedTuple):
    """Result of `relink`.

    Attributes:
        units: Number of units read.
        corrected: Number of wrong pointers in the log.
        too_far: (n,) positions of units more than a lap ahead; they are in no slot.
        damaged: (n,) positions without a unit, or with a unit whose times are inconsistent.
    """

    units: int
    corrected: int
    too_far: Offsets
    damaged: Offsets


def repair(log: TimerLog, wheel: TimerWheel, log_end: int) -> list[CorruptStore]:
    """Truncate the timer log to `log_end` and walk back the slots that point after it.

    Args:
        log_end: End of the log in the snapshot.

    Returns:
        Faults of the chains (20 at most); if there are any, call `relink`.
    """
    assert log_end <= log.end
    if wheel.is_unused:
        log.truncate(log_end)
        return []
    room = kernels.slots_after(wheel.data, wheel.pages, log_end, np.empty(0, layout.CURSOR))
    cursors = np.zeros(room, layout.CURSOR)
    kernels.slots_after(wheel.data, wheel.pages, log_end, cursors)
    cursors["fault"][cursors["pos"] >= log.end] = chain.FAULT_PLACE
    for file in reversed(log.files):
        chain.walk_back(file.data, file.base, cursors, wheel.precision_ms, log_end)
    last_pos = np.where(cursors["pos"] < log.min_pos, -1, cursors["pos"])
    broken = cursors["fault"] != 0
    last_pos[broken] = -1
    faults = _findings(log, wheel, cursors[broken])
    _count(log, wheel, cursors)
    kernels.set_slots(wheel.data, wheel.pages, cursors["tick"], last_pos, cursors["count"])
    log.truncate(log_end)
    return faults


def recount(log: TimerLog, wheel: TimerWheel, slot_ms: Offsets) -> None:
    """Count the timers of the slots that cover the times `slot_ms` again."""
    cursors = cursors_of(log, wheel, np.unique(slot_ms // wheel.precision_ms))
    cursors = cursors[(cursors["pos"] >= 0) & (cursors["fault"] == 0)]
    last_pos = cursors["pos"].copy()
    _count(log, wheel, cursors)
    kernels.set_slots(wheel.data, wheel.pages, cursors["tick"], last_pos, cursors["count"])


def _count(log: TimerLog, wheel: TimerWheel, cursors: Rows) -> None:
    for file in reversed(log.files):
        chain.count_pending(file.data, file.base, cursors, wheel.precision_ms)


def check(log: TimerLog, wheel: TimerWheel, read_ms: int) -> list[CorruptStore]:
    """Return the faults of the slots from `read_ms` on (20 at most).

    Only the newest unit of every slot is checked, not its chain.
    """
    faults: list[CorruptStore] = []
    if wheel.is_unused:
        return faults
    for slots in wheel.live_parts(read_ms):
        gone = slots["last_pos"] < log.min_pos
        cursors = check_slots(slots, log.end)
        cursors["fault"][gone & (slots["num"] > 0) & (cursors["fault"] == 0)] = chain.FAULT_PLACE
        inside = cursors[(cursors["fault"] == 0) & ~gone]
        for file in log.files:
            chain.check_units(file.data, file.base, inside, wheel.precision_ms)
        faults += _findings(log, wheel, cursors) + _findings(log, wheel, inside)
    stray = wheel.stray_slots(read_ms)
    if stray:
        reason = f"{stray} slots have a time more than a lap ahead"
        faults.append(CorruptStore(wheel.path, 0, reason, REMEDY))
    return faults[:FINDINGS_MAX]


def _findings(log: TimerLog, wheel: TimerWheel, cursors: Rows) -> list[CorruptStore]:
    wrong = cursors[cursors["fault"] != 0][:FINDINGS_MAX]
    return [
        chain_error(
            log, int(cursor["pos"]), int(cursor["fault"]), int(cursor["tick"]) * wheel.precision_ms
        )
        for cursor in wrong
    ]


def relink(log: TimerLog, wheel: TimerWheel, from_ms: int, *, window_ms: int = 1) -> Relinked:
    """Rebuild every slot from the units of the whole log.

    Pointers that do not lead to the previous unit of the slot are corrected on the
    disk. Slots before `from_ms` are emptied.

    Args:
        from_ms: the first slot that is not completely delivered.
        window_ms: Roll window; a unit whose times are inconsistent counts as damaged.

    Raises:
        OSError: A correction cannot be written; the call can be repeated.
    """
    done, corrected = 0, 0
    too_far, damaged = [NO_OFFSETS], []
    wheel.clear()
    first_tick = max(from_ms // wheel.precision_ms, 1)
    into = kernels.Relinking(first_tick, wheel.precision_ms, window_ms, log.min_pos)
    for file in list(log.files):
        pos, file_end = file.base, log.end_in(file)
        while pos < file_end:
            end = min(pos + RELINK_UNITS * UNIT_BYTES, file_end)
            file.will_read(pos, min(end + RELINK_UNITS * UNIT_BYTES, file_end))
            following, fixes = _relink_part(wheel, file, (pos, end), into)
            far = fixes[:, 1] == kernels.FIX_TOO_FAR
            too_far.append(fixes[far, 0])
            log.patch(fixes[~far, 0], "prev_pos", fixes[~far, 1])
            corrected += int((~far).sum())
            if following == pos and not len(fixes):
                damaged.append(pos)
                following += UNIT_BYTES
            done += (following - pos) // UNIT_BYTES
            pos = following
    return Relinked(done, corrected, np.concatenate(too_far), np.array(damaged, np.int64))


def _relink_part(
    wheel: TimerWheel, file: UnitFile, part: tuple[int, int], into: kernels.Relinking
) -> tuple[int, Offsets]:
    """Link units of one file; return (position to continue from, corrections for `log.patch`)."""
    fixes = np.empty((min(FIXES_MAX, (part[1] - part[0]) // UNIT_BYTES), 2), np.int64)
    following, fix_count = kernels.relink(
        file.data, (file.base, *part), wheel.data, wheel.pages, into, fixes
    )
    return int(following), fixes[:fix_count]
