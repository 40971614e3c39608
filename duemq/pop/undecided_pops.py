"""Pin of POP: the first log offset that undecided checkpoints need, for retention.

    minute of the revive time -> lowest log offset of a message in the checkpoints of that minute

The record of a checkpoint and its acknowledgements follow the checkpoint's messages in the log.
The log from the first message on is therefore enough to decide the checkpoint. A minute is removed
once the reviver has decided all of its checkpoints. The table is part of consumerOffset.json;
recovery reads the checkpoints that are newer than the file from the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from duemq.pop.checkpoints import PopCheckpoint

if TYPE_CHECKING:
    from message_store.store import MessageStore

MINUTE_MS: Final = 60_000
MINUTES_MAX: Final = 1_024  # above, the last two minutes are merged


class UndecidedPops:
    """Table of the first log offsets that undecided checkpoints need, by minute."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._first: dict[int, int] = {}

    def load(self, table: Mapping[int, int]) -> None:
        """Load the table from the file.

        Args:
            table: Log offset by minute since the epoch.
        """
        self._first = dict(table)

    def table(self) -> dict[int, int]:
        """Return a copy of the table, for the file."""
        return dict(self._first)

    def add(self, checkpoint: PopCheckpoint) -> None:
        """Add a stored checkpoint; a checkpoint whose messages were removed needs no log."""
        first = checkpoint.log_offset
        if first is None:
            offset = min(checkpoint.offsets, default=0)
            units = self._store.units(checkpoint.topic, checkpoint.queue_id, offset, 1)
            if not units.size:
                return
            first = int(units[0]["phys_offset"])
        minute = checkpoint.revive_ms // MINUTE_MS
        self._first[minute] = min(first, self._first.get(minute, first))
        if len(self._first) > MINUTES_MAX:
            *_, before, last = sorted(self._first)
            self._first[last] = min(self._first.pop(before), self._first[last])

    def decided(self, through_ms: int) -> None:
        """Remove the minutes whose checkpoints are all decided.

        Args:
            through_ms: Revive time up to which all checkpoints are decided, inclusive, in ms since
                the epoch.
        """
        minute = (through_ms + 1) // MINUTE_MS
        if self._first and min(self._first) < minute:
            self._first = {
                position: first for position, first in self._first.items() if position >= minute
            }

    def first_needed(self) -> int | None:
        """Return the first log offset that retention must keep; None: no pin."""
        return min(self._first.values(), default=None)
