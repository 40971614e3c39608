"""Writer of checkpoints: the state of one instant, consistent after a crash.

    instant     read time R, timer log end P, queue offset Q, commit log end L, counts, wheel pages
    then        commit log durable to L  ->  tombstones, timer log synced to P  ->  wheel pages
                ->  duemq.timers.json  ->  timercheck, timermetrics

Recovery returns to the last written instant: timers after P are enqueued again from
the queue at Q, and timers that were settled since are found in the commit log after L. Therefore a
file is written only after the log that it depends on is synced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from msgspec import Struct

from duemq_common.errors import CorruptStore
from message_store.log.commit_log import LogFile, erase_files
from timer_store.checkpoint.snapshot import Snapshot, SnapshotFiles
from timer_store.dequeue.dequeue_service import NO_UNITS
from timer_store.dequeue.unfinished_slot import settle_delivered
from timer_store.enqueue.queue_end import mark_queue_end
from timer_store.layout import NO_OFFSETS, Offsets
from timer_store.log.wheel import Captured
from timer_store.store import TimerStore

log = logging.getLogger(__name__)
PIECE_UNITS = 32_768  # maximum units that get their tombstones in one call
SCAN_BYTES_MAX = 64 << 20  # maximum bytes of the commit log that a start has to scan


class Capture(Struct, frozen=True):
    """State of a timer store at one instant.

    Attributes:
        pages: Changed pages that `TimerWheel.capture` returned.
        settled_units: Positions of the units of settled timers, in pieces.
        rolled: Positions of rolled units whose new units are in the previous checkpoint, or whose
            timers are settled.
        returned: Positions of units whose messages were returned to a level.
    """

    snapshot: Snapshot
    pages: Captured
    settled_units: list[Offsets]
    rolled: Offsets
    returned: list[Offsets]


class CheckpointWriter:
    """Writer of one timer store's checkpoints."""

    def __init__(self, timers: TimerStore) -> None:
        self._timers = timers
        self._files = timers.files
        self._one_at_a_time = asyncio.Lock()
        self._failed = False
        self._written: Snapshot | None = None
        self._next_tombstones, self._rolled_units = NO_OFFSETS, NO_UNITS
        self._rebuilds = timers.state.rebuilds

    @property
    def handover_offset(self) -> int:
        """Offset of the first ownership record after the checkpoint on the disk, 0 without one."""
        return 0 if self._written is None else self._written.handover_offset

    async def persist_in_turn(self) -> bool:
        """Write a checkpoint unless one is being written. Called by the periodic job."""
        return False if self._one_at_a_time.locked() else await self.persist()

    async def persist(self, *, last: bool = False) -> bool:
        """Write a checkpoint of this instant; return whether it is on the disk.

        It returns False if no timer changed, or if the disk did not sync in time.

        Args:
            last: Write it even if no timer changed.
        """
        async with self._one_at_a_time:
            return await self._persist(last=last)

    async def persist_last(self) -> bool:
        """Write the last checkpoint before the store is closed; return whether it is on the disk.

        The next broker on the store, Apache's too, finds no unit of a delivered timer, unless
        `settle_delivered` logs a warning.
        """
        async with self._one_at_a_time:
            self._drop_invalid_positions()
            self._next_tombstones = np.concatenate(
                [self._next_tombstones, settle_delivered(self._timers.state)]
            )
            done = await self._persist(last=True)
            if (
                done and self._next_tombstones.size
            ):  # units that were rolled since the last checkpoint
                done = await self._persist(last=True)
            return done

    async def _persist(self, *, last: bool) -> bool:
        timers = self._timers
        if timers.units.log.failure is not None:  # `_report_failure` has reported it
            return False
        count = timers.non_timers.settle(timers.clock.now_ms())
        while count:  # a client's batch may have thousands of markers
            await asyncio.sleep(0)
            count = timers.non_timers.settle(timers.clock.now_ms())
        if timers.enqueue.broken or timers.enqueue.markers:
            return False
        timers.state.is_adopting &= bool(timers.enqueue.lag_units or timers.transfers.incomplete)
        if timers.state.is_adopting:  # the next start adopts the store again
            return False
        if last:
            mark_queue_end(timers.state)
        snapshot = self._snapshot()
        if not last and self._written is not None and is_same(snapshot, self._written):
            return False
        self._drop_invalid_positions()
        pages, settled = timers.units.wheel.capture(), timers.settled_timers.capture()
        returned = timers.settled_timers.capture_returned()
        rolled, tombstones = self._take_rolled_units()
        needed = timers.state.first_needed
        needed_from = timers.log_cleaning.needed_from(snapshot.read_ms)
        timers.writing = True
        try:
            done = await self._write(Capture(snapshot, pages, settled, tombstones, returned))
        finally:
            timers.writing = False
        if not done:
            timers.units.wheel.mark_changed(pages)
            self._rolled_units = rolled
            return False
        timers.settled_timers.remove_written(len(returned))
        self._next_tombstones = np.setdiff1d(rolled[1], tombstones)
        self._written, self._failed = snapshot, False
        timers.state.pinned_from = needed
        files = timers.log_cleaning.detach_before(needed_from)
        if files:
            await asyncio.to_thread(self._erase, files)
        return True

    def _take_rolled_units(self) -> tuple[Offsets, Offsets]:
        """Return the units that were rolled since the last checkpoint, and the next tombstones.

        A timer that was rolled and settled since then gets both tombstones now: a start from this
        checkpoint would find its old unit, but no record that settles it.

        Returns:
            (2, n) i8, see `take_rolled_units`, and (m,) i8: positions in the timer log.
        """
        rolled = np.concatenate(
            [self._rolled_units, self._timers.dequeue.take_rolled_units()], axis=1
        )
        self._rolled_units = NO_UNITS
        is_settled = self._timers.settled_timers.has(rolled[0])
        return rolled, np.concatenate([self._next_tombstones, rolled[1][is_settled]])

    @staticmethod
    def _erase(files: list[LogFile]) -> None:
        try:
            erase_files(files)
        except OSError as error:
            log.error("old timer log files cannot be removed before the next start: %s", error)

    def _drop_invalid_positions(self) -> None:
        """Drop positions in the timer log if it was rebuilt."""
        if self._rebuilds != self._timers.state.rebuilds:
            self._rebuilds = self._timers.state.rebuilds
            self._next_tombstones, self._rolled_units = NO_OFFSETS, NO_UNITS

    async def _write(self, capture: Capture) -> bool:
        if not await self._timers.store.wait_durable(capture.snapshot.log_offset):
            return False
        try:
            await asyncio.to_thread(write, self._timers, self._files, capture)
        except OSError as error:
            self._report_failure(error)
            return False
        return True

    def _snapshot(self) -> Snapshot:
        """Return the current positions and counts."""
        timers = self._timers
        return Snapshot(
            read_ms=timers.position.read_ms,
            staged_ms=timers.position.loaded_ms,
            log_pos=timers.units.log.end,
            queue_offset=timers.position.queue_offset,
            handover_offset=timers.position.handover_offset,
            handover_unit=timers.position.handover_unit,
            log_offset=timers.store.max_offset,
            scan_from=min(
                timers.dequeue.scan_from(),
                timers.decisions.scan_from(),
                timers.transfers.scan_from(),
                timers.state.origin_run.scan_from(timers.store.max_offset),
            ),
            precision_ms=timers.config.precision_ms,
            window_ms=timers.config.window_ms,
            by_topic=timers.counts.by_topic(),
            by_file=timers.counts.by_file(),
            version_ms=timers.clock.now_ms(),
            generation=timers.store.generation,
        )

    def _report_failure(self, error: OSError) -> None:
        if self._timers.units.log.failure is not None:
            log.error(
                "the timer log could not be synced, so no checkpoint is written any more: %s. "
                "No timer is lost, and deliveries continue. Check the disk and restart the broker",
                error,
            )
        elif not self._failed:
            log.error("the timers' checkpoint cannot be written; it is tried again: %s", error)
        self._failed = True


def is_same(now: Snapshot, written: Snapshot) -> bool:
    """Return whether a restart from the written checkpoint would reach this state at once."""
    return (
        now.generation == written.generation
        and now.log_offset - written.log_offset < SCAN_BYTES_MAX
        and now.log_pos == written.log_pos
        and now.queue_offset == written.queue_offset
        and now.handover_offset == written.handover_offset
        and now.handover_unit == written.handover_unit
        and now.by_topic == written.by_topic
        and now.by_file == written.by_file
    )


def write(timers: TimerStore, files: SnapshotFiles, capture: Capture) -> None:
    """Write a captured state to the disk. Runs in any thread.

    Raises:
        OSError: A file cannot be written; the last checkpoint is still valid.
    """
    positions = np.concatenate([NO_OFFSETS, *capture.settled_units])
    _write_tombstones(timers, np.concatenate([positions[positions >= 0], capture.rolled]))
    for returned in _in_pieces(capture.returned):
        _write_tombstones(timers, returned[returned >= 0], copied=True)
    timers.units.log.sync(capture.snapshot.log_pos)
    timers.units.wheel.write(capture.pages)
    files.write(capture.snapshot)


def _write_tombstones(timers: TimerStore, positions: Offsets, *, copied: bool = False) -> None:
    """Write tombstones to units; positions without a unit are skipped.

    Raises:
        OSError: The timer log cannot be written.
    """
    try:
        timers.units.write_tombstones(positions, copied=copied)
    except CorruptStore as error:
        log.error("the timer log lacks a unit of a delivered timer, which is skipped: %s", error)
        for position in positions:
            with suppress(CorruptStore):
                timers.units.write_tombstones(np.array([position]), copied=copied)


def _in_pieces(arrays: list[Offsets]) -> Iterator[Offsets]:
    """Yield the positions joined to arrays of bounded size."""
    batch: list[Offsets] = []
    count = 0
    for positions in arrays:
        batch.append(positions)
        count += positions.size
        if count >= PIECE_UNITS:
            yield np.concatenate(batch)
            batch, count = [], 0
    if batch:
        yield np.concatenate(batch)
