"""Compaction: copies pending timers of old log files forward, so that the files can be removed.

    retention      lists files that could be removed without pins, when the disk fills up
      |  survey    counts the pending part of each file, by the timer log    pieces of units
      |  plan      chooses leading files with a small pending part           plan
      v  copy      appends new records to the timer queue; origin: the old   pieces of records
    checkpoint     the copies are on the disk: the pins are released   retention removes files

A copy is one record that settles the old timer and adds the new one, so recovery finds exactly one
of them. Damaged and oversized records are not copied, and are reported. Pieces are small and
separated by pauses, and none runs while a timer is due. The timer log itself needs no
compaction, because each unit is rolled within one roll window.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from message_store.retention.log_retention import Removal
from message_store.retention.pins import Unknown
from timer_store import layout
from timer_store.compaction.plan import NO_PLAN, Blocked, CompactionPlan, OldFile, plan_compaction
from timer_store.layout import Rows
from timer_store.log.unit_walk import UnitWalk, not_loaded
from timer_store.pending.decisions import Decisions
from timer_store.state import TimerState

log = logging.getLogger(__name__)
PIN_OWNER = "timer_store"  # name of the timers' pin in retention
RENEWING_OWNER = "recurring_schedules"  # it copies its records once no other pin keeps their file
COPIED_MAX, COPIED_BYTES_MAX = 128, 128 << 10  # per piece; a single record may exceed it
PAUSE_MS = 5  # between two pieces
RETRY_MS = 1_000  # pause while compaction is blocked
CHECK_MS = 1_000  # interval of checks whether files should be removed
AGAIN_MS = 60_000  # pause after an attempt that freed too little


class Survey:
    """Count of the pending timers in each log file before an offset."""

    def __init__(self, state: TimerState, until: int) -> None:
        self._file_bytes = state.store.config.commitlog_file_bytes
        self._first = state.store.min_offset // self._file_bytes
        self._walk = UnitWalk(state, until)
        count = max(-(-until // self._file_bytes) - self._first, 1)
        self._messages, self._bytes = np.zeros((2, count), np.int64)

    def steps(self) -> Iterator[None]:
        """Count all units, a bounded piece per step."""
        while self._walk.left:
            rows = self._walk.piece()
            which = rows["phys_offset"] // self._file_bytes - self._first
            self._messages += np.bincount(which, minlength=self._messages.size)
            sizes = np.bincount(which, rows["record_size"], self._bytes.size)
            self._bytes += sizes.astype(np.int64)
            yield

    def file(self, base: int) -> OldFile:
        """Return the counts of the file that begins at `base`."""
        position, end = base // self._file_bytes - self._first, base + self._file_bytes
        return OldFile(base, end, int(self._messages[position]), int(self._bytes[position]))


class Compaction:
    """Compaction of one timer store. Belongs to the event loop's thread.

    Attributes:
        plan: Plan being executed, or the last one.
        blocked_by, reason: Reason why nothing is copied although files should be removed.
        copied, copied_bytes: Messages copied since the start, and the size of their records.
        freed_bytes: Bytes of log files that no timer needs any more because of the copies.
        progress: Processed units and all units of the current walk.
        next_piece_ms: Earliest time of the next piece.
        work: Pieces that are left; None: no compaction runs.
    """

    def __init__(self, state: TimerState, decisions: Decisions) -> None:
        self._state, self._decisions = state, decisions
        self.work: Iterator[None] | None = None
        self.next_piece_ms = self._again_ms = 0
        self.plan = NO_PLAN
        self.blocked_by, self.reason = Blocked.NOTHING, ""
        self.copied = self.copied_bytes = self.freed_bytes = 0
        self.progress = (0, 0)

    # -- schedule -------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether a compaction runs."""
        return self.work is not None

    def begin_if_needed(self) -> bool:
        """Begin a compaction if the disk is filling up; return whether one runs."""
        if self.work is None:
            state = self._state
            removal = state.store.retention.files_to_free()
            if not (removal.bytes and state.config.compact_percent):
                self._report(Blocked.NOTHING, "")
            elif state.clock.now_ms() >= self._again_ms:
                self._begin(removal)
        return self.work is not None

    def end_pauses(self) -> None:
        """End the pause between two pieces or two attempts."""
        self.next_piece_ms = self._again_ms = 0

    def start(self, plan: CompactionPlan) -> None:
        """Begin a requested compaction."""
        if self.work is None and plan.until:
            self._report(Blocked.NOTHING, "")
            self.work, self.next_piece_ms = self._execute(plan, by_hand=True), 0

    def _begin(self, removal: Removal) -> None:
        first, end, reason = self.span(removal)
        self._report(Blocked.OTHER_PINS if reason else Blocked.NOTHING, reason)
        if first < end:
            self.work, self.next_piece_ms = self._run(removal), 0

    def turn(self, now_ms: int) -> None:
        """Do one piece if its pause has ended. Called when no timer is due."""
        if self.work is None or now_ms < self.next_piece_ms:
            return
        blocked_by, reason = self._obstacle()
        if blocked_by:
            self._report(blocked_by, reason)
            self.next_piece_ms = now_ms + RETRY_MS
            return
        self.next_piece_ms = now_ms + PAUSE_MS
        try:
            next(self.work)
        except StopIteration:
            self.work, self.progress = None, (0, 0)
            self._again_ms = now_ms + (AGAIN_MS if self.blocked_by else 0)

    def _obstacle(self) -> tuple[Blocked, str]:
        state, reason = self._state, ""
        if not state.store.writable:
            return Blocked.REFUSED, f"nothing can be copied: {state.store.refusal}"
        if state.config.stop_enqueue:
            reason = "timerStopEnqueue"
        elif state.enqueue.lag_units or state.dequeue.is_rolling:
            reason = state.enqueue.blocked_by or "timers are being enqueued or rolled"
        if not reason:
            return Blocked.NOTHING, ""
        return Blocked.NOT_ENQUEUED, f"nothing can be copied: {reason}"

    def _report(self, blocked_by: Blocked, reason: str) -> None:
        if blocked_by and blocked_by != self.blocked_by:
            temporary = blocked_by == Blocked.NOT_ENQUEUED
            log.log(
                logging.INFO if temporary else logging.WARNING, "old log files are kept: %s", reason
            )
        self.blocked_by, self.reason = blocked_by, reason

    # -- selection ------------------------------------------------------------------------------

    def span(self, removal: Removal) -> tuple[int, int, str]:
        """Return (first, end) log offsets of the candidate files, and the reason for the limit.

        Files that another plugin pins are not candidates, unless only definitions of schedules do.
        """
        state, file_bytes = self._state, self._state.store.config.commitlog_file_bytes
        first = state.counts.first_file
        if first is None or first >= removal.until or self._free_bytes >= removal.bytes:
            return removal.until, removal.until, ""
        others = state.store.retention.first_pinned(but=[PIN_OWNER, RENEWING_OWNER])
        if isinstance(others, Unknown):
            return (
                removal.until,
                removal.until,
                "another plugin does not report which files it needs",
            )
        if others is None or others >= removal.until:
            return first, removal.until, ""
        reason = f"the levels or another plugin need the log from {others} on"
        return first, others // file_bytes * file_bytes, reason

    @property
    def _free_bytes(self) -> int:
        """Bytes of log files that no timer needs: the next round of retention removes them."""
        return self._first_needed() - int(self._state.store.min_offset)

    def _first_needed(self) -> int:
        first = self._state.counts.first_file
        return int(self._state.store.max_offset) if first is None else first

    def decide(self, removal: Removal, survey: Survey) -> CompactionPlan:
        """Return the plan for a survey."""
        state, file_bytes = self._state, self._state.store.config.commitlog_file_bytes
        first, end, reason = self.span(removal)
        if first >= end:
            return (
                CompactionPlan(blocked_by=Blocked.OTHER_PINS, reason=reason) if reason else NO_PLAN
            )
        plan = plan_compaction(
            [survey.file(base) for base in range(first, end, file_bytes)],
            enough=removal.bytes - self._free_bytes,
            percent=state.config.compact_percent,
            room=state.store.retention.room // 2,  # the other half is reserved for producers
        )
        return (
            replace(plan, blocked_by=Blocked.OTHER_PINS, reason=reason)
            if reason and not plan.blocked_by
            else plan
        )

    def _run(self, removal: Removal) -> Iterator[None]:
        """Survey, plan, copy; each step is one piece of work."""
        survey = Survey(self._state, removal.until)
        yield from survey.steps()
        plan = self.decide(removal, survey)
        self._report(plan.blocked_by, plan.reason)
        if plan.until:
            yield from self._execute(plan, by_hand=False)

    def _execute(self, plan: CompactionPlan, *, by_hand: bool) -> Iterator[None]:
        self.plan = plan
        log.info(
            "%d messages (%d bytes) are copied forward, out of %d bytes of old log files",
            plan.messages,
            plan.bytes,
            plan.frees,
        )
        before = self._first_needed()
        yield from self._copy_until(plan.until, by_hand)
        self._conclude(plan, before, by_hand)

    def _copy_until(self, until: int, by_hand: bool) -> Iterator[None]:
        """Copy pending timers before a log offset, as long as space is needed."""
        state, walk = self._state, UnitWalk(self._state, until)
        looked_ms = state.clock.now_ms()
        while walk.left:
            units = walk.piece()[["pos", "slot_ms"]].copy()
            self.progress = walk.progress
            while units.size and walk.valid:
                units = units[self._copy(units[:COPIED_MAX]) :]
                yield
            if not by_hand and state.clock.now_ms() - looked_ms >= CHECK_MS:
                looked_ms = state.clock.now_ms()
                if not state.store.retention.files_to_free().bytes:
                    return
            yield

    def _copy(self, units: Rows) -> int:
        """Copy the timers of some units; return the number of units handled.

        Timers settled since the survey are skipped.

        Args:
            units: `pos` and `slot_ms` of each.
        """
        state = self._state
        units = units[units["pos"] >= state.units.log.min_pos]
        rows = state.units.read(np.ascontiguousarray(units["pos"]))
        sizes = np.cumsum(rows["record_size"].clip(0).astype(np.int64))
        count = max(int(np.searchsorted(sizes, COPIED_BYTES_MAX, "right")), 1)
        rows, slot_ms = rows[:count], units["slot_ms"][:count]
        pending = (rows["state"] == layout.STAGED_PENDING) & not_loaded(state, slot_ms)
        pending &= ~state.settled_timers.has(np.ascontiguousarray(rows["phys_offset"]))
        rows = rows[pending]
        state.pin()
        timed, copied = state.copies.put(rows, state.clock.now_ms())
        if copied.any():
            self._decisions.settle(timed[copied], rows["pos"][copied])
        self.copied += int(copied.sum())
        self.copied_bytes += int(rows["record_size"][copied].sum())
        return count

    def _conclude(self, plan: CompactionPlan, before: int, by_hand: bool) -> None:
        """Count the bytes that can be removed now; report why others cannot."""
        state, first = self._state, self._first_needed()
        self.freed_bytes += max(min(first, plan.until) - before, 0)
        if by_hand:
            state.store.retention.request_removal(plan.until)
        elif not state.store.retention.files_to_free().bytes:
            self._report(Blocked.NOTHING, "")
            return
        if first < plan.until:
            by_file = state.counts.by_file()
            left = sum(count for base, count in by_file.items() if base < plan.until)
            reason = f"{left} timers in log files from {first} on are due soon or cannot be copied"
            self._report(Blocked.NOT_COPIED, reason)
