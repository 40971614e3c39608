"""Choice of the log files to compact: a decision without effects.

    log files, oldest first     [ . x . . ][ x x x . ][ . . . x ][ . . . . ][ written ]
    together at most the share   \\___ 1 ____________/ \\___ 2 ___/

Files go from the oldest on, so what counts is the share of leading files together: a full file is
worth copying when those after it are nearly empty. Each choice is the shortest piece that gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RECORD_EXTRA_BYTES: Final = 256  # a copy's marks, its unit, its places in queue and key index


class Waits(StrEnum):
    """Why nothing is copied although files should go."""

    NOTHING = ""
    TOO_FULL = "too_full"  # most of what the oldest files hold waits
    NO_ROOM = "no_room"  # the copies would fill the disk
    OTHERS = "others"  # the levels, or another plugin, need the same files
    REFUSED = "refused"  # the store takes no writes
    BEHIND = "behind"  # timers in the queue are not enqueued
    LEFT = "left"  # what was copied was not all: the rest is due soon, or damaged


@dataclass(frozen=True, slots=True)
class OldFile:
    """A log file, and what waits in it.

    Attributes:
        base, end: log offsets.
        messages, bytes: pending timers in it, and the size of their records.
    """

    base: int
    end: int
    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What is copied.

    Attributes:
        until: timers whose records lie before this log offset.
        messages, bytes: how many, and the size of their records.
        frees: bytes of the log files that are free to go then.
        waits, why: why not more; for programs, and for an operator.
    """

    until: int = 0
    messages: int = 0
    bytes: int = 0
    frees: int = 0
    waits: Waits = Waits.NOTHING
    why: str = ""


NO_PLAN: Final = CompactionPlan()


def plan_compaction(
    files: Sequence[OldFile], *, enough: int, percent: int, room: int
) -> CompactionPlan:
    """Choose the files that are made free.

    Args:
        files: that may go, from the first that a timer waits in, oldest first.
        enough: bytes to gain; no more files are chosen than that takes.
        percent: of some leading files, how much may wait at most.
        room: bytes that copies may take.
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
            return _waiting(plan, Waits.NO_ROOM, _no_room(more, room))
        plan, first = more, number
        if plan.frees - plan.bytes >= enough:
            return plan
    return plan if first == len(files) else _waiting(plan, Waits.TOO_FULL, _full(files[first:]))


def _waiting(plan: CompactionPlan, waits: Waits, why: str) -> CompactionPlan:
    return CompactionPlan(plan.until, plan.messages, plan.bytes, plan.frees, waits, why)


def _no_room(plan: CompactionPlan, room: int) -> str:
    return (
        f"copying {plan.messages} messages ({plan.bytes} bytes) forward needs room, and only "
        f"{max(room, 0)} bytes may be used for it: make room, or wait until they are delivered"
    )


def _full(files: Sequence[OldFile]) -> str:
    file = files[0]
    share = file.bytes * 100 // (file.end - file.base)
    return (
        f"{share} % of the log file that begins at {file.base} still waits, and of those after it "
        f"too much: copying would gain too little (timerCompactRatio)"
    )
