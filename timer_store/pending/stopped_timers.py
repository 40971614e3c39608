"""Lookup of pending timers while no timers run: `timerWheelEnable=false`.

Which timers are still pending is unknown then, and none can be decided on. A lookup that may
concern one is an error, because `unknown` or `already delivered` could be false.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from delayed_delivery import ownership
from delayed_delivery.ownership_projection import Ownership
from delayed_delivery.pending import (
    Decided,
    Found,
    HitQuery,
    Hooks,
    PendingPiece,
    Position,
    Verdict,
    none_found,
)
from duemq_common.errors import StoreError
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.index.key_search import frames, search
from message_store.retention.pins import FirstPending, is_pinned
from timer_store.layout import Offsets

if TYPE_CHECKING:
    from message_store.store import MessageStore

NOT_RUNNING: Final = "the timer store does not run: timerWheelEnable is false"
REMEDY: Final = "Set it to true and start the broker again"
NOTICE: Final = (
    "timers may be pending in this store; they are not delivered, and their log files are kept: "
    f"timerWheelEnable is false. {REMEDY} to deliver them"
)


class StoppedTimers:
    """Timers of a store that may be pending; none can be found.

    Args:
        first_pending: Log offset of the first record that may be a pending timer.
    """

    def __init__(self, store: MessageStore, first_pending: FirstPending) -> None:
        self._store, self._first_pending = store, first_pending
        self._timer, self._schedule = map(store.topics.add, (TIMER_TOPIC, SCHEDULE_TOPIC))
        self._owned = Ownership()  # migrations are not possible while timers are switched off
        for entry in ownership.read(store):
            self._owned.apply(entry)

    async def by_offset(self, offsets: Offsets) -> Found:
        """Find nothing.

        Raises:
            StoreError: One of the records may be a pending timer.
        """
        self._refuse(offsets, [f"the message at log offset {index}" for index in offsets.tolist()])
        return none_found(int(offsets.size))

    async def by_key(
        self, topic: str | Sequence[str], keys: Sequence[str], *, unique: bool
    ) -> Found:
        """Find nothing.

        Raises:
            StoreError: One of the keys belongs to a timer that may be pending; or as in
                `PendingMessages`.
        """
        if keys:
            topics = [TIMER_TOPIC, SCHEDULE_TOPIC] if self._owned else [TIMER_TOPIC]
            matches = await search(self._store, topics, keys)
            self._refuse(matches.offsets, [keys[index] for index in matches.key_at.tolist()])
        return none_found(len(keys))

    def _refuse(self, offsets: Offsets, names: Sequence[str]) -> None:
        """Raise if one of the records may be a pending timer."""
        for row, offset, name in zip(
            frames(self._store, offsets), offsets.tolist(), names, strict=True
        ):
            if self._may_be_pending(row, offset):
                raise StoreError(f"{name} may be a pending timer, but {NOT_RUNNING}. {REMEDY}")

    def _may_be_pending(self, row: npt.NDArray[np.void], offset: int) -> bool:
        if row["topic_index"] == self._timer:
            return is_pinned(offset + 1, self._first_pending)
        unit = int(row["queue_offset"])
        is_owned = self._owned.owns(int(row["queue_id"]) + 1, unit)
        return bool(row["topic_index"] == self._schedule and is_owned)

    def promised(self, offsets: Offsets) -> Offsets:
        """Return -1 for each record."""
        return np.full(offsets.size, -1, np.int64)

    def search(self, query: HitQuery, cursor: str) -> PendingPiece:
        """Find nothing.

        Raises:
            StoreError: Always.
        """
        timers = f"timers of {query.topic}" if query.topic else "timers"
        raise StoreError(f"{timers} may be pending, but {NOT_RUNNING}. {REMEDY}")

    def walk(self, position: Position) -> tuple[Found, Position | None]:
        """Find nothing.

        Raises:
            StoreError: Always.
        """
        raise StoreError(f"timers may be pending, but {NOT_RUNNING}. {REMEDY}")

    def wake_due(self, now_ms: int) -> bool:
        """Return False: no timer is delivered."""
        return False

    def cancel(self, offsets: Offsets) -> Decided:
        """Decide on nothing."""
        return Decided(np.full(offsets.size, Verdict.UNKNOWN, np.int8))

    def move(self, offsets: Offsets, due_ms: Offsets, hooks: Hooks) -> Decided:
        """Decide on nothing."""
        return self.cancel(offsets)

    def fire(self, offsets: Offsets) -> Decided:
        """Decide on nothing."""
        return self.cancel(offsets)
