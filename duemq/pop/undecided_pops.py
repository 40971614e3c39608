"""Pin of POP: the first log offset that undecided checkpoints need, for retention.

    minute of the revive time -> log offset of the first message that a checkpoint of it names

A checkpoint's own records, and its acknowledgements, are after its messages. So the log from there
on is enough for its decision. A minute is dropped once the reviver has decided all of it. The table
is part of consumerOffset.json; checkpoints that are newer than the file are read from the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from duemq.pop.checkpoints import Checkpoint

if TYPE_CHECKING:
    from message_store.store import MessageStore

MINUTE_MS: Final = 60_000
MINUTES_MAX: Final = 1_024  # with more, the last two become one


class UndecidedPops:
    """First log offsets of the messages that may have to be revived."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._first: dict[int, int] = {}

    def load(self, table: Mapping[int, int]) -> None:
        """Take the table of the file."""
        self._first = dict(table)

    def table(self) -> dict[int, int]:
        """Return the table for the file."""
        return dict(self._first)

    def add(self, checkpoint: Checkpoint) -> None:
        """Note a checkpoint that was put."""
        offset = min(checkpoint.offsets, default=0)
        units = self._store.units(checkpoint.topic, checkpoint.queue_id, offset, 1)
        if not units.size:
            return  # its messages are gone
        minute, first = checkpoint.revive_ms // MINUTE_MS, int(units[0]["phys_offset"])
        self._first[minute] = min(first, self._first.get(minute, first))
        if len(self._first) > MINUTES_MAX:
            *_, before, last = sorted(self._first)
            self._first[last] = min(self._first.pop(before), self._first[last])

    def decided(self, through_ms: int) -> None:
        """Drop minutes of which every checkpoint is decided.

        Args:
            through_ms: Revive time up to which all are.
        """
        minute = (through_ms + 1) // MINUTE_MS
        if self._first and min(self._first) < minute:
            self._first = {at: first for at, first in self._first.items() if at >= minute}

    def first_needed(self) -> int | None:
        """Return the first log offset that retention must keep, None without any; a pin."""
        return min(self._first.values(), default=None)
