"""Plan of a compaction: the log files to copy pending timers out of. No effects.

    log files, oldest first     [ . x . . ][ x x x . ][ . . . x ][ . . . . ][ written ]
    together at most the share   \\___ 1 ____________/ \\___ 2 ___/

Retention removes files from the oldest on, so the limit applies to the pending share of leading
files together: a full file is worth copying if the files after it are nearly empty. Each step
selects the shortest run of files below the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

# Growth per copy: added properties, unit, entries in queue and key index.
RECORD_EXTRA_BYTES: Final = 256


class Blocked(StrEnum):
    """Reason why nothing is copied although files should be removed."""

    NOTHING = ""
    TOO_FULL = "too_full"  # most messages of the oldest files are pending
    NO_ROOM = "no_room"  # the copies would fill the disk
    OTHER_PINS = "others"  # the levels, or another plugin, need the same files
    REFUSED = "refused"  # the store takes no writes
    NOT_ENQUEUED = "behind"  # timers in the queue are not enqueued
    NOT_COPIED = "left"  # the timers that were not copied are due soon or damaged


class OldFile(Struct, frozen=True):
    """Log file with the count of its pending timers.

    Attributes:
        base, end: log offsets.
        messages, bytes: pending timers in it, and the size of their records.
    """

    base: int
    end: int
    messages: int = 0
    bytes: int = 0


class CompactionPlan(Struct, frozen=True):
    """Plan of one compaction.

    Attributes:
        until: Pending timers with records before this log offset are copied.
        messages, bytes: Their number, and the size of their records.
        frees: Bytes of the log files that can be removed after the copies.
        blocked_by, reason: Reason for not copying more, for programs and for an operator.
    """

    until: int = 0
    messages: int = 0
    bytes: int = 0
    frees: int = 0
    blocked_by: Blocked = Blocked.NOTHING
    reason: str = ""


NO_PLAN: Final = CompactionPlan()


def plan_compaction(
    files: Sequence[OldFile], *, enough: int, percent: int, room: int
) -> CompactionPlan:
    """Return the plan that frees log files.

    Args:
        files: Candidates, from the first with a pending timer, oldest first.
        enough: Bytes to free; no more files are chosen than needed.
        percent: Maximum pending share of the chosen files.
        room: Maximum bytes of the copies.
    """
    plan, first = NO_PLAN, 0
    for number, file in enumerate(files, 1):
        part = files[first:number]
        size = sum(f.end - f.base for f in part)
        copied = sum(f.bytes for f in part)
        if copied * 100 > percent * size:
            continue
        messages = plan.messages + sum(f.messages for f in part)
        more = CompactionPlan(file.end, messages, plan.bytes + copied, plan.frees + size)
        if more.bytes + more.messages * RECORD_EXTRA_BYTES > room:
            return _blocked_plan(plan, Blocked.NO_ROOM, _no_room(more, room))
        plan, first = more, number
        if plan.frees - plan.bytes >= enough:
            return plan
    return (
        plan if first == len(files) else _blocked_plan(plan, Blocked.TOO_FULL, _full(files[first:]))
    )


def _blocked_plan(plan: CompactionPlan, blocked_by: Blocked, reason: str) -> CompactionPlan:
    return CompactionPlan(plan.until, plan.messages, plan.bytes, plan.frees, blocked_by, reason)


def _no_room(plan: CompactionPlan, room: int) -> str:
    return (
        f"copying {plan.messages} messages ({plan.bytes} bytes) forward needs room, and only "
        f"{max(room, 0)} bytes may be used for it: free space, or wait until they are delivered"
    )


def _full(files: Sequence[OldFile]) -> str:
    file = files[0]
    share = file.bytes * 100 // (file.end - file.base)
    return (
        f"{share} % of the log file that begins at {file.base} is pending, and too much of those "
        f"after it: copying would gain too little (timerCompactRatio)"
    )
