"""Units whose tags code the disk has changed: a filter by tags would hide their messages.

A filter by tags compares tags codes and reads no record of a unit that it leaves out. One flipped
bit of a code that the consumer wants leaves a code that differs from it in one bit. Such units are
compared with their records, once for each code of a topic: a code that is right for one message is
that of a tag in use. A flipped bit that makes the code of another tag in use stays unnoticed until
`duemq store verify`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from duemq.registry.subscriptions import Subscription
from message_store.layout import PRE_BLANK_SIZE, Rows

if TYPE_CHECKING:
    from message_store.store import MessageStore

KNOWN_MAX: Final = 10_000


class HiddenUnits:
    """Repair of units that a filter by tags leaves out wrongly, for one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: set[tuple[str, int]] = set()  # topics and their codes that are right

    def repaired(
        self, place: tuple[str, int, int], units: Rows, subscription: Subscription
    ) -> bool:
        """Repair the first unit with a changed tags code; return whether there was one.

        Args:
            place: Topic, queue, and queue offset of the first unit.
            units: (n,) layout.UNIT that were looked at.
        """
        topic, queue_id, offset = place
        near = subscription.nearly_passes(units["tags_code"])
        near &= units["phys_offset"] >= self._store.min_offset
        near &= units["size"] != PRE_BLANK_SIZE
        for at in np.flatnonzero(near).tolist():
            key = topic, int(units[at]["tags_code"])
            if key in self._known:
                continue
            if self._store.repair.repaired(topic, queue_id, offset + at):
                return True
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known.add(key)
        return False
