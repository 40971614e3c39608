"""Pops of a clock that was ahead: their pending records are delivered to the revive topic at once.

    the clock shows 10:00    pop, 60 s       -> checkpoint, due 10:00:59; acknowledgement, due 10:01
    the clock is set to 9:00                 -> both are fired, the checkpoint first
                                             -> visible again at 9:01, if it is not acknowledged

Otherwise the messages would be invisible, and their log files needed, until the clock shows 10:01.
The search reads the timers that are newer than the first undecided checkpoint, in bounded steps.
Copies of a checkpoint that compaction makes may follow its acknowledgements in the log, so these
are fired when all checkpoints are. Until then the reviver decides nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from delayed_delivery.pending import PendingMessages, Verdict
from duemq.pop.checkpoints import PopCheckpoint, RecordError, is_ahead, parse_revive_record
from duemq.pop.names import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, revive_topic
from duemq.pop.undecided_pops import UndecidedPops
from duemq.registry.managers import Identity
from duemq_common.errors import StoreError
from duemq_common.text import java_hash
from duemq_common.topics import TIMER_TOPIC

if TYPE_CHECKING:
    from message_store.store import MessageStore

UNITS_MAX: Final = 4_096  # units of timers that one step reads
RECORDS_MAX: Final = 128  # records that one step reads or fires
TAGS: Final = [java_hash(tag) for tag in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG)]


class AheadPops:
    """Search for the records of pops that are ahead of the clock.

    Args:
        undecided: Knows the latest time of a pop; is replaced at the end of a search.
        pending: Returns the components that own pending messages.
    """

    def __init__(
        self,
        store: MessageStore,
        undecided: UndecidedPops,
        identity: Identity,
        pending: Callable[[], Sequence[PendingMessages]],
    ) -> None:
        self._store, self._undecided, self._identity = store, undecided, identity
        self._pending, self._topic = pending, revive_topic(identity.cluster_name)
        self._next: int | None = None  # queue offset of the next timer; None: no search
        self._first = self._seen_ms = 0
        self._acknowledgements = array("q")  # log offsets
        self._complete = UndecidedPops(store)

    def is_needed(self, now_ms: int) -> bool:
        """Return whether there may be such records."""
        return self._undecided.is_ahead(now_ms)

    def end(self, checkpoint: PopCheckpoint) -> None:
        """Keep the log for a checkpoint that is not ahead of the clock any more, until its time."""
        self._undecided.add(checkpoint)

    def step(self, now_ms: int) -> bool:
        """Do one bounded step; return False if the store refuses it now."""
        if self._next is None or now_ms < self._seen_ms:
            self._begin()
        assert self._next is not None
        self._seen_ms = now_ms
        low, high = self._store.queue_bounds(TIMER_TOPIC, 0)
        self._next = max(self._next, low)
        if self._next < high:
            return self._read(self._next, now_ms)
        if self._acknowledgements:
            if not self._fire(self._acknowledgements[:RECORDS_MAX].tolist()):
                return False
            del self._acknowledgements[:RECORDS_MAX]
            return True
        self._undecided.replace(self._complete, now_ms)
        self._next = None
        return True

    def _begin(self) -> None:
        first = self._undecided.first_needed()
        self._first = self._store.max_offset if first is None else first
        self._next = self._store.queue_end_before(TIMER_TOPIC, 0, self._first)
        self._acknowledgements, self._complete = array("q"), UndecidedPops(self._store)

    def _read(self, begin: int, now_ms: int) -> bool:
        """Read the next timers and fire the checkpoints; return False if the store refuses it."""
        units = self._store.units(TIMER_TOPIC, 0, begin, UNITS_MAX)
        is_meant = (units["phys_offset"] >= self._first) & np.isin(units["tags_code"], TAGS)
        rows = np.flatnonzero(is_meant)
        end = int(rows[RECORDS_MAX]) if rows.size > RECORDS_MAX else max(int(units.size), 1)
        checkpoints, acknowledgements, complete = list[int](), list[int](), self._complete
        for log_offset in units["phys_offset"][rows[:RECORDS_MAX]].tolist():
            try:
                record = self._store.read_record(log_offset)
                if record.properties.get("REAL_TOPIC") != self._topic:
                    continue
                item = parse_revive_record(record, self._identity.broker_name)
            except (StoreError, RecordError):
                continue  # the reviver reports the record
            if not is_ahead(item.pop_ms, now_ms):
                complete.latest_ms = max(complete.latest_ms, item.pop_ms)
                if isinstance(item, PopCheckpoint):
                    complete.need(item, item.revive_ms)
            elif isinstance(item, PopCheckpoint):
                checkpoints.append(log_offset)
                complete.need(item, now_ms + item.invisible_ms)
            else:
                acknowledgements.append(log_offset)
        if checkpoints and not self._fire(checkpoints):
            return False
        self._acknowledgements.extend(acknowledgements)
        self._next = begin + end
        return True

    def _fire(self, log_offsets: Sequence[int]) -> bool:
        """Fire timers that are pending; return False if the store refuses it."""
        offsets, components = np.array(log_offsets, np.int64), self._pending()
        for component in components:
            owned = offsets[component.promised(offsets) >= 0]
            if owned.size and (component.fire(owned).verdicts == Verdict.REFUSED).any():
                return False
        return bool(components)
