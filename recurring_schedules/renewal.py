"""Renewal: appends definitions again before retention removes the log files that contain them.

    DUEMQ_SCHEDULES    create A | create B | ... | renew A | renew B
                       expired file, would be removed without the pin of the schedules

The record of a renewal is the newest state of its schedule, so it changes nothing. A definition is
renewed at most once in the time for which log files are kept. Pieces are small and separated by
pauses, because no timer is delivered meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np

from duemq_common.clock import Clock, Signal
from duemq_common.errors import RecordUnreadable, RequestError
from message_store.retention.pins import Unknown
from recurring_schedules import journal
from recurring_schedules.names import PLUGIN
from recurring_schedules.table import IS_DELETED, ScheduleTable

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
TURN_DEFINITIONS: Final = 5
PAUSE_MS: Final = 5  # between two pieces
CHECK_MS: Final = 60_000  # between two looks at the log files


class DefinitionRenewal:
    """Task that renews definitions of one store.

    Attributes:
        renewed: Number of renewed definitions since the start.
    """

    def __init__(self, store: MessageStore, table: ScheduleTable, clock: Clock) -> None:
        self._store, self._table, self._clock = store, table, clock
        self._stop, self._stops = Signal(), False
        self._slots: list[int] = []  # to renew, the oldest definition last
        self._until = 0
        self._unreadable: set[int] = set()  # log offsets
        self.renewed = 0

    def stop(self) -> None:
        """Make `run` return."""
        self._stops = True
        self._stop.set()

    async def run(self) -> None:
        """Renew definitions until `stop`."""
        while not self._stops:
            pause_ms = PAUSE_MS if self.turn() else CHECK_MS
            await self._clock.wait(self._stop, until_ms=self._clock.now_ms() + pause_ms)

    def turn(self) -> bool:
        """Renew the oldest definitions that pin a file; return whether there may be more."""
        if not self._slots:
            self._slots = self._pinning()
        for _ in range(min(TURN_DEFINITIONS, len(self._slots))):
            if self._store.refusal:
                self._slots = []
                break
            self._renew(self._slots.pop())
        return bool(self._slots)

    def _pinning(self) -> list[int]:
        """Return the slots whose definitions are in files that could be removed without them."""
        if not len(self._table):
            return []
        retention, rows = self._store.retention, self._table.filled
        self._until = max(retention.expired_files().until, retention.files_to_free().until)
        others = retention.first_pinned(but=[PLUGIN])
        if isinstance(others, Unknown):
            return []
        if others is not None:
            self._until = min(self._until, others)
        slots = np.flatnonzero((rows["offset"] < self._until) & (rows["state"] != IS_DELETED))
        order = np.argsort(rows["offset"][slots])[::-1]
        return [
            slot
            for slot in slots[order].tolist()
            if int(rows["offset"][slot]) not in self._unreadable
        ]

    def _renew(self, slot: int) -> None:
        row = self._table.rows[slot]
        if row["offset"] >= self._until or row["state"] == IS_DELETED:  # changed meanwhile
            return
        try:
            record = self._table.record(self._store, slot)
            journal.append(self._store, record, self._clock.now_ms())
        except RecordUnreadable as error:
            self._unreadable.add(int(row["offset"]))
            log.error("a definition keeps its log file, because it cannot be copied: %s", error)
        except RequestError as error:
            log.warning("a definition is copied later: %s", error)
        else:
            self.renewed += 1
