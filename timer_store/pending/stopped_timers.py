"""Lookup of pending timers while no timers run: `timerWheelEnable=false`.

Which timers are still pending is unknown then, and none can be decided on. A lookup that may
concern one is an error, because `unknown` or `already delivered` could be false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from delivery.pending import Decided, Found, Hooks, Verdict, none_found
from message_store.errors import StoreError
from message_store.index.key_search import frames, search
from message_store.retention.pins import FirstPending, is_pinned
from timer_store.layout import Offsets
from timer_store.names import TIMER_TOPIC

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
        self._timer = store.topics.add(TIMER_TOPIC)

    async def by_offset(self, offsets: Offsets) -> Found:
        """Find nothing.

        Raises:
            StoreError: One of the records may be a pending timer.
        """
        rows = frames(self._store, offsets)
        for offset in offsets[rows["topic_index"] == self._timer].tolist():
            self._refuse(offset, f"the message at log offset {offset}")
        return none_found(int(offsets.size))

    async def by_key(self, topic: str, keys: Sequence[str], *, unique: bool) -> Found:
        """Find nothing.

        Raises:
            StoreError: One of the keys belongs to a timer that may be pending; or as in
                `PendingMessages`.
        """
        if keys:
            matches = await search(self._store, [TIMER_TOPIC], keys)
            for key_at, offset in zip(
                matches.key_at.tolist(), matches.offsets.tolist(), strict=True
            ):
                self._refuse(offset, keys[key_at])
        return none_found(len(keys))

    def _refuse(self, offset: int, name: str) -> None:
        if is_pinned(offset + 1, self._first_pending):
            raise StoreError(f"{name} may be a pending timer, but {NOT_RUNNING}. {REMEDY}")

    def promised(self, offsets: Offsets) -> Offsets:
        """Return -1 for each record."""
        return np.full(offsets.size, -1, np.int64)

    def by_topic(self, topic: str, from_ms: int, until_ms: int) -> Iterator[Found]:
        """Find nothing.

        Raises:
            StoreError: Always.
        """
        raise StoreError(f"timers of {topic} may be pending, but {NOT_RUNNING}. {REMEDY}")

    def cancel(self, offsets: Offsets) -> Decided:
        """Decide on nothing."""
        return Decided(np.full(offsets.size, Verdict.UNKNOWN, np.int8))

    def move(self, offsets: Offsets, due_ms: Offsets, hooks: Hooks) -> Decided:
        """Decide on nothing."""
        return self.cancel(offsets)

    def fire(self, offsets: Offsets) -> Decided:
        """Decide on nothing."""
        return self.cancel(offsets)
