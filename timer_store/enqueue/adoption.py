"""Adoption of a store that an Apache broker left: its pending and settled timers.

An Apache broker writes no origins, and its timercheck is a claim without a checksum. Pending and
settled timers are derived from the commit log only: a copy that was delivered or made while rolling
is a record of its own, with the identity (`kernels.adoption`) of the timer that it was made of.

    record of the queue, or        has a delivered copy, or a copy that was rolled    settled
    level message of timers        is the origin of a record of DueMQ's               settled
                                   is named by a marker: same slot, topic+key         cancelled
                                   otherwise                                          pending

So deliveries depend neither on Apache's timercheck, timer log and wheel, nor on the timeline in
RocksDB, which may have the timers from 5.4 on. Apache's timer log is removed before ours is
written. A timer that Apache dropped, because it could not store it, has no copy: it is pending.

In a group, an Apache broker may have been master since our checkpoint, also while this store was
closed: `has_apache_deliveries` finds its deliveries and rolls in the log. Then our checkpoint is
not used.

Source: TimerMessageStore.recover, convert, doReput; TimerCheckpoint
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator

import numpy as np

from duemq_common.directories import sync_directory
from duemq_common.errors import CorruptStore, RecordUnreadable
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store import layout as store_layout
from message_store.index.key_search import frames
from message_store.ranges import distinct
from timer_store import layout
from timer_store.kernels import adoption as kernels
from timer_store.layout import NO_OFFSETS, Mask, Offsets, Rows
from timer_store.log.wheel import move_aside
from timer_store.names import TIMER_QUEUE
from timer_store.state import TimerState

log = logging.getLogger(__name__)
Notice = Callable[[str], None]
CHUNK_UNITS = 65_536


# -- files --------------------------------------------------------------------------------------


def load_log(state: TimerState, notice: Notice, *, foreign: bool) -> None:
    """Open the timer log; remove a foreign one first, and move a damaged one aside.

    Args:
        foreign: An Apache broker wrote timercheck, or our own checkpoint is lost.
    """
    directory = state.units.log.directory
    if foreign:
        shutil.rmtree(directory, ignore_errors=True)
        for snapshot in directory.parent.glob("timerwheel.*"):  # of that log
            if snapshot.suffix[1:].isdigit():
                snapshot.unlink()
        sync_directory(directory.parent)
    try:
        state.units.log.load()
    except CorruptStore as error:
        state.units.log.close()
        kept = move_aside(directory)
        notice(f"{error} Its files are kept as {kept}; the timer log is rebuilt.")
        state.units.log.load()


# -- settled timers -----------------------------------------------------------------------------


class ApacheCopies:
    """Copies that an Apache broker made, by identity, and markers by name.

    Targets of markers are not looked up in the key index, because Apache's index may have gaps. A
    marker cancels only records before it in the queue, so a message sent again later is not lost.

    Args:
        special: (n,) `layout.IDENTIFIED` of markers and of rolled timers in the queue.
        delivered: (n,) i8: identities of delivered copies.
    """

    def __init__(self, special: Rows, delivered: Offsets) -> None:
        rolled, markers = special[special["rolls"] > 0], special[special["marker"] != 0]
        order = np.lexsort((markers["phys_offset"], markers["name"]))
        last = np.append(
            np.diff(markers["name"][order]) != 0, np.ones(min(order.size, 1), np.bool_)
        )
        self._markers = markers[order][last]  # newest marker of each name
        both = np.concatenate([rolled["identity"], delivered])
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
        positions = np.searchsorted(names, rows["name"])
        positions[positions == names.size] = 0
        named = (names[positions] == rows["name"]) & (rows["name"] != 0)
        before = (rows["phys_offset"] <= self._markers["phys_offset"][positions]) | (
            rows["rolls"] > 0
        )
        return np.asarray((named & before) | (rows["marker"] != 0))

    def copied(self, rows: Rows) -> Mask:
        """Return which records of the queue were delivered or rolled. Called in queue order.

        Args:
            rows: (n,) `layout.IDENTIFIED`.
        """
        settled = np.zeros(rows.size, np.bool_)
        if not self._identities.size:
            return settled
        positions = np.searchsorted(self._identities, rows["identity"])
        positions[positions == self._identities.size] = 0
        with_copies = np.flatnonzero(self._identities[positions] == rows["identity"])
        last, positions = self._last[positions[with_copies]], positions[with_copies]
        settled[with_copies] = rows["phys_offset"][with_copies] < last
        open_ = np.flatnonzero(~settled[with_copies])
        order = open_[np.argsort(positions[open_], kind="stable")]
        ranked = positions[order]
        rank = np.arange(ranked.size) - np.searchsorted(ranked, ranked)
        done = rank < self._delivered[ranked]
        settled[with_copies[order[done]]] = True
        np.subtract.at(self._delivered, ranked[done], 1)
        return settled


def settled(state: TimerState) -> Offsets:
    """Return the log offsets of settled records of the queue, and of all origins, ascending."""
    named, delivered = _read_log(state)
    by_apache = _settled_by_apache(state, delivered)
    state.is_adopting = bool(by_apache.size)
    return distinct(named, by_apache)


def _settled_by_apache(state: TimerState, delivered: Offsets) -> Offsets:
    """Return the log offsets of timers that an Apache broker settled, ascending.

    Args:
        delivered: (n,) i8: identities of delivered copies.
    """
    special = np.concatenate([np.empty(0, layout.IDENTIFIED), *_special(state)])
    if not special.size and not delivered.size:
        return NO_OFFSETS  # only DueMQ has processed these timers
    copies, settled_offsets = ApacheCopies(special, delivered), [NO_OFFSETS]
    for units in _units(state, state.fetch.bounds()[0]):
        rows = _identify(state, units["phys_offset"], kernels.ALL)
        settled_offsets.append(rows["phys_offset"][copies.copied(rows) | copies.cancelled(rows)])
    for rows in _owned(state):
        settled_offsets.append(rows["phys_offset"][copies.copied(rows)])
    return distinct(*settled_offsets)


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
        _is_delivery(state, index)
        for rows in state.store.scan(log_offset)
        for index in _copies(state, rows)["phys_offset"].tolist()
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


def _owned(state: TimerState) -> Iterator[Rows]:
    """Yield (n,) `layout.IDENTIFIED` of the level messages that timers own."""
    owned = state.transfers.owned
    for level in owned.pieces:
        for first, end in owned.ranges(level):
            for start in range(first, end, CHUNK_UNITS):
                rows, _ = state.transfers.owned_rows(level, start, min(start + CHUNK_UNITS, end))
                yield _identify(state, rows["phys_offset"], kernels.ALL)


def _read_log(state: TimerState) -> tuple[Offsets, Offsets]:
    """Return the origins that the log names, ascending, and the identities of Apache's copies."""
    store = state.store
    first = store.min_offset
    named, copies = [NO_OFFSETS], [NO_OFFSETS]
    state.origin_run.begin(first, store.max_offset)
    for rows in store.scan(first):
        state.origin_run.add(rows)
        prepared = rows["prepared_offset"]
        named.append(-(prepared[prepared < 0] + 1))
        copies.append(_copies(state, rows)["identity"])
    return distinct(*named), np.concatenate(copies)


def _copies(state: TimerState, rows: Rows) -> Rows:
    """Return (n,) `layout.IDENTIFIED` of the copies that Apache delivered, of scanned records."""
    sources = [state.store.topics.add(name) for name in (TIMER_TOPIC, SCHEDULE_TOPIC)]
    foreign = ~np.isin(rows["topic_index"], sources) & (rows["prepared_offset"] >= 0)
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


def _identify(state: TimerState, offsets: Offsets, interest: int) -> Rows:
    """Return (m,) `layout.IDENTIFIED` of the records of interest at `offsets`.

    Args:
        interest: See `kernels.identify`.
    """
    identified = [np.empty(0, layout.IDENTIFIED)]
    offsets = np.ascontiguousarray(offsets)  # one compiled kernel for columns of any rows
    position = 0
    frames = np.zeros(1, store_layout.SCANNED)
    while position < offsets.size:
        try:
            file = state.store.log_file(int(offsets[position]))
        except RecordUnreadable:
            position += 1
            continue
        inside = (offsets[position:] >= file.base) & (offsets[position:] < file.base + file.size)
        count = int(inside.size if inside.all() else np.argmin(inside))
        out = np.zeros(count, layout.IDENTIFIED)
        span = state.store.written_span(file)
        made = kernels.identify(
            file.data, span, offsets[position : position + count], interest, frames, out
        )
        identified.append(out[:made])
        position += count
    return np.concatenate(identified)
