"""Adoption of a store that an Apache broker left: its pending and settled timers.

An Apache broker writes no origins. Pending and settled timers are derived from

    timercheck    R, the first slot that is not completely delivered; Q, the next queue offset
    timer log     units in the slots from R on
    commit log    delivered copies, and copies made while rolling: records of their own, with the
                  identity (`kernels.adoption`) of the timer that they were made of

    record of the queue    before Q, of a slot before R, no unit from R on    settled
                           has a delivered copy, or a copy that was rolled    settled
                           is the origin of a record of DueMQ's               settled (recovery)
                           is named by a marker: same slot, topic+key         cancelled
                           otherwise                                          pending

A timer that Apache delivered after its last checkpoint is therefore not delivered again. If
timercheck or the timer log is lost or invalid, R and Q are unknown and only the commit log is used.

From 5.4 on, RocksDB may have had the timers (`timerRocksDBEnable`): then Q is its position, and the
records before Q are in no slot. It cannot be known from the files, so for these versions, Q counts
as 0: a timer is settled only by what the commit log has. Snapshots of the wheel are of the old
timer log, and are removed with it.

In a group, an Apache broker may have been master since our checkpoint, also while this store was
closed: `has_apache_deliveries` finds its deliveries and rolls in the log. Then only the commit log
is used, not our checkpoint.

Adoption does not change Apache's files: its timer log is renamed (`timerlog.apache`) before ours is
written, and removed after our first checkpoint. Until then timercheck is Apache's, so the next
start after a crash adopts the store again.

Source: TimerMessageStore.recover, convert, doReput; TimerCheckpoint
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from message_store import layout as store_layout
from message_store.errors import ConfigError, CorruptStore, RecordUnreadable
from message_store.index.key_search import frames
from message_store.log.commit_log import sync_directory
from message_store.ranges import distinct, is_in
from message_store.recovery.recover import file_before
from timer_store import layout
from timer_store.checkpoint.snapshot import CHECK_FILE, Check
from timer_store.kernels import adoption as kernels
from timer_store.layout import NO_OFFSETS, Mask, Offsets, Rows
from timer_store.log.timer_log import TimerLog
from timer_store.log.wheel import move_aside
from timer_store.names import TIMER_QUEUE, TIMER_TOPIC
from timer_store.state import TimerState

log = logging.getLogger(__name__)
Notice = Callable[[str], None]
Progress = Callable[[str, int, int], None]
CHUNK_UNITS = 65_536
ROCKSDB_NAME = "rocksdbstore"  # directory in the root of each store from 5.4 on
ASIDE_NAME = "timerlog.apache"
CLOCK_SLACK_MS = 3_600_000  # maximum tolerated step by which Apache's clock was set back


class ApachePositions(NamedTuple):
    """Positions of the broker that wrote timercheck.

    Attributes:
        read_ms: the first slot that is not completely delivered.
        queue_offset: the next unit of the queue to enqueue.
        near: (n,) log offsets, ascending, of timers with a unit in a slot from `read_ms` on.
    """

    read_ms: int = 0
    queue_offset: int = 0
    near: Offsets = NO_OFFSETS


UNKNOWN = ApachePositions()


# -- files --------------------------------------------------------------------------------------


def load_log(state: TimerState, notice: Notice, *, foreign: bool, own: bool) -> None:
    """Open the timer log; move a foreign or damaged one aside first.

    Args:
        foreign: An Apache broker wrote timercheck, or our own checkpoint is lost.
        own: Our checkpoint is valid.
    """
    directory = state.units.log.directory
    aside = directory.with_name(ASIDE_NAME)
    if own and aside.is_dir():
        shutil.rmtree(aside)
    if foreign and aside.is_dir():
        shutil.rmtree(directory, ignore_errors=True)  # an interrupted start has moved it already
    elif foreign and directory.is_dir():
        os.rename(directory, aside)
        for snapshot in directory.parent.glob("timerwheel.*"):  # of that log
            if snapshot.suffix[1:].isdigit():
                snapshot.unlink()
        sync_directory(aside.parent)
    try:
        state.units.log.load()
    except CorruptStore as error:
        state.units.log.close()
        kept = move_aside(directory)
        notice(f"{error} Its files are kept as {kept}; the timer log is rebuilt.")
        state.units.log.load()


def find_apache_positions(state: TimerState, notice: Notice) -> ApachePositions:
    """Return the positions in timercheck and timer log; `UNKNOWN` if they are invalid."""
    check, store = state.files.check, state.store
    assert check is not None
    if store.truncations.followed(CHECK_FILE) != store.generation:
        notice(
            f"the commit log was truncated after {state.files.directory / CHECK_FILE} was written: "
            f"the pending timers are derived from the commit log only"
        )
        return UNKNOWN
    _, queue_end = state.fetch.bounds()
    queue_offset = min(check.queue_offset, check.master_queue_offset)
    if (store.config.root / ROCKSDB_NAME).is_dir():
        queue_offset = 0
    if queue_offset > queue_end or check.read_ms > state.clock.now_ms() + CLOCK_SLACK_MS:
        notice(
            f"{state.files.directory / CHECK_FILE} has read time {check.read_ms} and queue "
            f"offset {queue_offset}, the queue ends at {queue_end} and it is "
            f"{state.clock.now_ms()}: the pending timers are derived from the commit log only"
        )
        return UNKNOWN
    directory = state.units.log.directory.with_name(ASIDE_NAME)
    near = near_units(directory, check)
    if near is None:
        notice(
            f"{directory} ends before {check.log_pos}, the position in timercheck: the pending "
            f"timers are derived from the commit log only"
        )
        return UNKNOWN
    return ApachePositions(check.read_ms, queue_offset, near)


def near_units(directory: Path, check: Check) -> Offsets | None:
    """Return the records with units in slots from the read time on; None if the log is damaged.

    The log is read to its valid end, because timercheck and wheel lag behind it.
    """
    sizes = {path.stat().st_size for path in directory.glob("*")} if directory.is_dir() else set()
    if not sizes:
        return NO_OFFSETS if check.log_pos == 0 else None
    try:
        units = TimerLog(directory, sizes.pop())
        units.load()
    except (CorruptStore, ConfigError):
        return None
    try:
        units.end = units.find_end(0)
        if units.end < check.log_pos:
            return None
        near = (rows["phys_offset"][rows["slot_ms"] >= check.read_ms] for rows in units.scan())
        return distinct(NO_OFFSETS, *near)
    finally:
        units.close()


# -- settled timers -----------------------------------------------------------------------------


class ApacheCopies:
    """Copies that an Apache broker made, by identity, and markers by name.

    Targets of markers are not looked up in the key index, because Apache's index may have gaps. A
    marker cancels only records before it in the queue, so a message sent again later is not lost.

    Args:
        special: (n,) `layout.IDENTIFIED` of markers and of rolled timers in the queue.
        delivered: (n,) `layout.IDENTIFIED` of delivered copies.
    """

    def __init__(self, special: Rows, delivered: Rows) -> None:
        rolled, markers = special[special["rolls"] > 0], special[special["marker"] != 0]
        order = np.lexsort((markers["phys_offset"], markers["name"]))
        last = np.append(
            np.diff(markers["name"][order]) != 0, np.ones(min(order.size, 1), np.bool_)
        )
        self._markers = markers[order][last]  # newest marker of each name
        both = np.concatenate([rolled["identity"], delivered["identity"]])
        self._identities, which = np.unique(both, return_inverse=True)
        self._last = np.full(self._identities.size, -1, np.int64)  # offset of its newest roll
        np.maximum.at(self._last, which[: rolled.size], rolled["phys_offset"])
        self._delivered = np.bincount(which[rolled.size :], minlength=self._identities.size)

    def cancelled(self, rows: Rows) -> Mask:
        """Return which records of the queue are markers, or are cancelled by one.

        A rolled copy may be after the marker that cancels its timer.
        """
        names = self._markers["name"]
        if not names.size:
            return np.zeros(rows.size, np.bool_)
        at = np.searchsorted(names, rows["name"])
        at[at == names.size] = 0
        named = (names[at] == rows["name"]) & (rows["name"] != 0)
        before = (rows["phys_offset"] <= self._markers["phys_offset"][at]) | (rows["rolls"] > 0)
        return np.asarray((named & before) | (rows["marker"] != 0))

    def copied(self, rows: Rows) -> Mask:
        """Return which records of the queue were delivered or rolled. Called in queue order.

        Args:
            rows: (n,) `layout.IDENTIFIED`.
        """
        settled = np.zeros(rows.size, np.bool_)
        if not self._identities.size:
            return settled
        at = np.searchsorted(self._identities, rows["identity"])
        at[at == self._identities.size] = 0
        mine = np.flatnonzero(self._identities[at] == rows["identity"])
        last, at = self._last[at[mine]], at[mine]
        settled[mine] = rows["phys_offset"][mine] < last
        open_ = np.flatnonzero(~settled[mine])
        order = open_[np.argsort(at[open_], kind="stable")]
        ranked = at[order]
        rank = np.arange(ranked.size) - np.searchsorted(ranked, ranked)
        done = rank < self._delivered[ranked]
        settled[mine[order[done]]] = True
        np.subtract.at(self._delivered, ranked[done], 1)
        return settled


def settled(state: TimerState, positions: ApachePositions, progress: Progress) -> Offsets:
    """Return the log offsets of settled records of the queue, and of all origins, ascending.

    Args:
        positions: Positions of the Apache broker; with `UNKNOWN`, only the commit log is used.
    """
    named, delivered = _read_log(state, _scan_start(state, positions), progress)
    by_apache = _settled_by_apache(state, positions, delivered)
    state.is_adopting = bool(by_apache.size)
    return distinct(named, by_apache)


def _settled_by_apache(state: TimerState, positions: ApachePositions, delivered: Rows) -> Offsets:
    """Return the log offsets of records of the queue that an Apache broker settled, ascending.

    Args:
        delivered: (n,) `layout.IDENTIFIED` of delivered copies.
    """
    special = np.concatenate([np.empty(0, layout.IDENTIFIED), *_special(state)])
    if positions is UNKNOWN and not special.size and not delivered.size:
        return NO_OFFSETS  # only DueMQ has processed these timers
    copies = ApacheCopies(special, delivered)
    found, offset = [NO_OFFSETS], state.fetch.bounds()[0]
    for units in _units(state, offset):
        rows = _identify(state, units["phys_offset"], kernels.ALL)
        found.append(_read_by_apache(state, units, rows, offset, positions))
        rows = rows[~is_in(rows["phys_offset"], found[-1])]
        settled = copies.copied(rows) | copies.cancelled(rows)
        found.append(rows["phys_offset"][settled])
        offset += int(units.size)
    found += _delivered_transfers(state, positions)
    return distinct(*found)


def has_apache_deliveries(state: TimerState, log_offset: int, queue_offset: int) -> bool:
    """Return whether an Apache broker has delivered or rolled timers after a checkpoint of ours.

    Args:
        log_offset: End of the log at the checkpoint.
        queue_offset: The next unit of the queue to enqueue at that time.
    """
    first, end = state.fetch.bounds()
    if first >= end:
        return False
    for units in _units(state, queue_offset):
        rows = _identify(state, units["phys_offset"], kernels.SPECIAL)
        rolled = frames(state.store, rows["phys_offset"][rows["rolls"] > 0])
        if (rolled["prepared_offset"] >= 0).any():  # a roll of DueMQ's names its origin
            return True
    return any(
        _is_delivery(state, at)
        for rows in state.store.scan(log_offset)
        for at in _copies(state, rows)["phys_offset"].tolist()
    )


def _is_delivery(state: TimerState, offset: int) -> bool:
    """Return whether a copy is in the queue that it names, unlike a message that was sent back."""
    try:
        record = state.store.read_record(offset)
    except RecordUnreadable:
        return False
    if (topic := record.properties.get("REAL_TOPIC")) is None:  # by RocksDB's timeline
        return not record.topic.startswith("%")
    return (topic, record.properties.get("REAL_QID")) == (record.topic, str(record.queue_id))


def _delivered_transfers(state: TimerState, positions: ApachePositions) -> Iterator[Offsets]:
    """Yield transferred level messages whose slot Apache has read, and which are thus delivered.

    Their delivered copies have no timer properties that identify them, so a message that Apache
    delivered from an incomplete slot is delivered again. A message that is due after the store
    time of the last record is not delivered, even if its slot was read.
    """
    owned, width_ms = state.transfers.owned, state.config.precision_ms
    last_ms = state.store.store_ms(state.store.last_record)
    for level in owned.pieces if positions is not UNKNOWN else ():
        for first, end in owned.ranges(level):
            for start in range(first, end, CHUNK_UNITS):
                rows, _ = state.transfers.owned_rows(level, start, min(start + CHUNK_UNITS, end))
                slot_ms = (rows["due_ms"] - 1) // width_ms * width_ms
                read = (slot_ms < positions.read_ms) & (rows["due_ms"] <= last_ms)
                offsets = rows["phys_offset"][read]
                yield offsets[~is_in(offsets, positions.near)]


def _read_by_apache(
    state: TimerState, units: Rows, rows: Rows, offset: int, positions: ApachePositions
) -> Offsets:
    """Return the records that Apache has enqueued, and whose slot Apache has read."""
    early = units["phys_offset"][: max(positions.queue_offset - offset, 0)]
    later = rows["phys_offset"][rows["out_ms"] >= positions.read_ms]
    return early[~(is_in(early, later) | is_in(early, positions.near))]


def _scan_start(state: TimerState, positions: ApachePositions) -> int:
    """Return the log offset after which deliveries may be missing in timercheck."""
    store = state.store
    if not store.log.files:
        return 0
    start = file_before(store.log, positions.read_ms - CLOCK_SLACK_MS)
    if positions.queue_offset < state.fetch.bounds()[1]:
        for units in _units(state, positions.queue_offset):
            return int(min(start, max(units[0]["phys_offset"], store.min_offset)))
    return int(start)


def _read_log(state: TimerState, start: int, progress: Progress) -> tuple[Offsets, Rows]:
    """Return the origins that the log names, and (n,) `layout.IDENTIFIED` of Apache's copies.

    Args:
        start: Log offset after which copies count.
    """
    store = state.store
    first = store.min_offset
    named, copies = [NO_OFFSETS], [np.empty(0, layout.IDENTIFIED)]
    state.origin_run.begin(first, store.max_offset)
    for rows in store.scan(first):
        state.origin_run.add(rows)
        prepared = rows["prepared_offset"]
        named.append(-(prepared[prepared < 0] + 1))
        copies.append(_copies(state, rows[rows["phys_offset"] >= start]))
        at = int(rows[-1]["phys_offset"]) - first
        progress("bytes of the commit log scanned", at, store.max_offset - first)
    return distinct(*named), np.concatenate(copies)


def _copies(state: TimerState, rows: Rows) -> Rows:
    """Return (n,) `layout.IDENTIFIED` of the copies that Apache delivered, of scanned records."""
    timer_topic = state.store.topics.add(TIMER_TOPIC)
    foreign = (rows["topic_index"] != timer_topic) & (rows["prepared_offset"] >= 0)
    return _identify(state, rows["phys_offset"][foreign], kernels.DELIVERED)


def _special(state: TimerState) -> Iterator[Rows]:
    """Yield (n,) `layout.IDENTIFIED` of the markers and the rolled timers in the queue."""
    for units in _units(state, state.fetch.bounds()[0]):
        yield _identify(state, units["phys_offset"], kernels.SPECIAL)


def _units(state: TimerState, offset: int) -> Iterator[Rows]:
    """Yield the units of the timer queue; units in a hole have size 0 and no record."""
    first, end = state.fetch.bounds()
    offset = max(offset, first)
    while offset < end:
        count = min(CHUNK_UNITS, end - offset)
        units = state.store.units(TIMER_TOPIC, TIMER_QUEUE, offset, count)
        if not units.size:
            units = np.zeros(1, store_layout.UNIT)
            units["phys_offset"] = -1
        yield units
        offset += int(units.size)


def _identify(state: TimerState, offsets: Offsets, wanted: int) -> Rows:
    """Return (m,) `layout.IDENTIFIED` of the records of interest at `offsets`.

    Args:
        wanted: See `kernels.identify`.
    """
    found = [np.empty(0, layout.IDENTIFIED)]
    store_log, at = state.store.log, 0
    frames = np.zeros(1, store_layout.SCANNED)
    while at < offsets.size:
        try:
            file = store_log.file_of(int(offsets[at]))
        except RecordUnreadable:
            at += 1
            continue
        inside = (offsets[at:] >= file.base) & (offsets[at:] < file.base + file.size)
        count = int(inside.size if inside.all() else np.argmin(inside))
        out = np.zeros(count, layout.IDENTIFIED)
        span = file.base, min(file.size, store_log.end - file.base)
        made = kernels.identify(file.data, span, offsets[at : at + count], wanted, frames, out)
        found.append(out[:made])
        at += count
    return np.concatenate(found)
