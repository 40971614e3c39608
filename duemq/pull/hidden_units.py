"""Repair of consume queue units that a tag filter skips because their tags code is damaged.

A tag filter compares tags codes only and does not read the records of skipped units. A skipped unit
whose code differs in one bit from a code of the subscription may be damaged, so it is compared with
its record. A code that equals its record's is correct, belongs to a tag in use, and is not compared
again for that topic. If a flipped bit changes a code to that of another tag in use, only
`duemq store verify` finds the damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from duemq.registry.subscriptions import Subscription
from message_store.layout import PRE_BLANK_SIZE, Rows

if TYPE_CHECKING:
    from message_store.store import MessageStore

CORRECT_CODES_MAX: Final = 10_000


class HiddenUnits:
    """Detection and repair of wrongly skipped units in one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
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
        for at in np.flatnonzero(suspect).tolist():
            key = topic, int(units[at]["tags_code"])
            if key in self._correct:
                continue
            if self._store.repair.repaired(topic, queue_id, offset + at):
                return True
            if len(self._correct) >= CORRECT_CODES_MAX:
                self._correct.clear()
            self._correct.add(key)
        return False
