"""Pin of POP: the first log offset that undecided checkpoints need, for retention.

    minute of the revive time -> lowest log offset of a message in the checkpoints of that minute

The record of a checkpoint and its acknowledgements follow the checkpoint's messages in the log.
The log from the first message on is therefore enough to decide the checkpoint. A minute is removed
once the reviver has decided all of its checkpoints. The table is part of consumerOffset.json;
recovery reads the checkpoints that are newer than the file from the log.

The table has the latest time of a pop, too. If the clock shows an earlier time, it was set back,
and there may be records that are due when it shows their time again: see
`duemq.pop.revival.ahead_pops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from duemq.pop.checkpoints import Acknowledgement, PopCheckpoint, is_ahead

if TYPE_CHECKING:
    from message_store.store import MessageStore

MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
MINUTES_MAX: Final = 1_024  # above, the last two minutes are merged


class UndecidedPops:
    """Table of the first log offsets that undecided checkpoints need, by minute.

    Attributes:
        latest_ms: Latest time of a pop whose records may be pending, in ms since the epoch.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._first: dict[int, int] = {}
        self.latest_ms = 0

    def load(self, table: Mapping[int, int], latest_ms: int = 0) -> None:
        """Load the table from the file.

        Args:
            table: Log offset by minute since the epoch.
            latest_ms: See `latest_ms`.
        """
        self._first, self.latest_ms = dict(table), latest_ms

    def is_ahead(self, now_ms: int) -> bool:
        """Return whether pops of a clock that was ahead may have pending records."""
        return is_ahead(self.latest_ms, now_ms)

    def ack_due_ms(self, record: Acknowledgement, now_ms: int) -> int:
        """Return the time at which an acknowledgement must be in the revive topic.

        The checkpoint of a pop ahead of the clock is there already, or comes with the records of
        all these pops.
        """
        if not is_ahead(record.pop_ms, now_ms):
            return record.due_ms
        return min(record.due_ms, now_ms + DAY_MS) if self.is_ahead(now_ms) else now_ms

    def acknowledged(self, record: Acknowledgement, now_ms: int) -> None:
        """Add a stored acknowledgement; the pop time of a client is valid up to the present."""
        if record.pop_ms > self.latest_ms and not is_ahead(record.pop_ms, now_ms):
            self.latest_ms = record.pop_ms

    def table(self) -> dict[int, int]:
        """Return a copy of the table, for the file."""
        return dict(self._first)

    def add(self, checkpoint: PopCheckpoint) -> None:
        """Add a stored checkpoint; a checkpoint whose messages were removed needs no log."""
        self.latest_ms = max(self.latest_ms, checkpoint.pop_ms)
        self.need(checkpoint, checkpoint.revive_ms)

    def need(self, checkpoint: PopCheckpoint, until_ms: int) -> None:
        """Keep the log from the first message of a checkpoint on, until it is decided.

        Args:
            until_ms: Its revive time, in ms since the epoch.
        """
        first = checkpoint.log_offset
        if first is None:
            offset = min(checkpoint.offsets, default=0)
            units = self._store.units(checkpoint.topic, checkpoint.queue_id, offset, 1)
            if not units.size:
                return
            first = int(units[0]["phys_offset"])
        minute = until_ms // MINUTE_MS
        self._first[minute] = min(first, self._first.get(minute, first))
        if len(self._first) > MINUTES_MAX:
            *_, before, last = sorted(self._first)
            self._first[last] = min(self._first.pop(before), self._first[last])

    def replace(self, complete: UndecidedPops, now_ms: int) -> None:
        """Replace the table by one of all pending checkpoints, and of some that are decided.

        The next call of `decided` removes these. Checkpoints with a short invisible time are not
        among the pending ones: the minutes that end now remain.
        """
        soon, table = now_ms // MINUTE_MS + 1, complete.table()
        for minute in [minute for minute in self._first if minute <= soon]:
            table[minute] = min(self._first[minute], table.get(minute, self._first[minute]))
        self._first, self.latest_ms = table, complete.latest_ms

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
