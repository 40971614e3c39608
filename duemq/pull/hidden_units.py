"""Repair of consume queue units that a tag filter skips because their tags code is damaged.

A tag filter compares tags codes only and does not read the records of skipped units. A skipped unit
whose code differs in one bit from a code of the subscription may be damaged, so it is compared with
its record:

    written before the start, or long ago     every unit: the disk may have changed it, and the code
                                              may have become that of another tag in use
    just written by this run                  one unit of each topic and code: if it is correct, a
                                              tag in use has that code

Few tags differ in one bit from another one, such as `A` and `C`. In topics without such tags, no
correct unit is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from duemq.registry.subscriptions import Subscription
from message_store.layout import PRE_BLANK_SIZE, Rows
from message_store.queues.consume_queue import LIGHT_QUEUES

if TYPE_CHECKING:
    from message_store.store import MessageStore

CORRECT_CODES_MAX: Final = 10_000
Mask = npt.NDArray[np.bool_]


class HiddenUnits:
    """Detection and repair of wrongly skipped units in one store."""

    def __init__(self, store: MessageStore, compiled: Callable[[], bool] = lambda: True) -> None:
        self._store, self._compiled = store, compiled
        self._correct: set[tuple[str, int]] = set()  # (topic, correct tags code)

    def repaired(
        self, position: tuple[str, int, int], units: Rows, subscription: Subscription
    ) -> bool:
        """Repair the first unit with a damaged tags code; return whether one was repaired.

        Args:
            position: Topic, queue id, and queue offset of the first unit.
            units: (n,) layout.UNIT that the pull has evaluated.
        """
        topic, queue_id, offset = position
        suspect = subscription.nearly_matches(units["tags_code"])
        suspect &= units["phys_offset"] >= self._store.min_offset
        suspect &= units["size"] != PRE_BLANK_SIZE
        if topic.startswith(LIGHT_QUEUES) or not suspect.any():
            return False
        stored = units["phys_offset"] < self._store.written_from
        if self._stored_repaired(position, units, suspect & stored):
            return True
        new = np.flatnonzero(suspect & ~stored)
        for at, tags_code in zip(new.tolist(), units["tags_code"][new].tolist(), strict=True):
            key = topic, tags_code
            if key in self._correct:
                continue
            if self._store.repair.repaired(topic, queue_id, offset + at):
                return True
            if len(self._correct) >= CORRECT_CODES_MAX:
                self._correct.clear()
            self._correct.add(key)
        return False

    def _stored_repaired(self, position: tuple[str, int, int], units: Rows, stored: Mask) -> bool:
        """Repair the first damaged unit among the units that the disk may have changed."""
        if not stored.any():
            return False
        topic, queue_id, offset = position
        if self._compiled():
            places = self._store.repair.unsound(*position, units, stored)
        else:
            places = np.flatnonzero(stored).tolist()
        return any(self._store.repair.repaired(topic, queue_id, offset + at) for at in places)
