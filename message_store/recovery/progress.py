"""Progress of the queues, saved in recovery mark and checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from message_store.log.commit_log import Appender, CommitLog
from message_store.log.flusher import Flusher, sync_files
from message_store.queues.consume_queues import QueueSet
from message_store.recovery.checkpoint import Checkpoint, Marks, RecoveryMark


class QueueProgress:
    """Writer of the recovery mark and the checkpoint while a store is open.

    Args:
        confirmed: Returns the log offset up to which consumers may read.
    Attributes:
        marked: Log offset of the last mark.
    """

    def __init__(
        self,
        log: CommitLog,
        appender: Appender,
        queues: QueueSet,
        mark: RecoveryMark,
        checkpoint: Checkpoint,
        notice: Callable[[str], None],
        confirmed: Callable[[], int],
    ) -> None:
        self._log, self._appender, self._queues = log, appender, queues
        self._mark, self._checkpoint, self._notice = mark, checkpoint, notice
        self._confirmed = confirmed
        self.marked = 0
        self._synced_before: Marks | None = None  # marks at the last sync of the queues
        self._checkpoint_failed = False

    def mark_recovered(self) -> None:
        """Mark every record as dispatched; reset marks after the end of the log."""
        marks = self._mark.read()
        if marks is not None and marks.durable > self._log.end:
            self._mark.update(durable=0, durable_record=-1, durable_units=0)
        self.mark_dispatched()

    def mark_dispatched(self) -> None:
        """Mark every record as dispatched, unless units are missing."""
        if not self._queues.has_backlog:
            self._mark.update(
                dispatched=self._log.end,
                last_record=self._appender.last_record,
                units=self._queues.ends_sum,
            )
            self.marked = self._log.end

    def detach_topic(self, name: str) -> Path | None:
        """Detach a topic's queues from the store; return the directory to be erased.

        Raises:
            OSError: The directory cannot be moved; nothing has changed.
        """
        before = self._queues.ends_sum
        detached = self._queues.detach_topic(name, self._log.end)
        self._removed(before - self._queues.ends_sum)
        return detached

    def _removed(self, units: int) -> None:
        """Subtract removed units from the mark; a start would report them as missing."""
        marks = self._mark.read()
        if marks is not None:
            self._mark.update(durable_units=max(marks.durable_units - units, 0))
        self._synced_before = None
        self.mark_dispatched()

    def restart_topic(self, name: str, before: int) -> None:
        """Remove a topic's queues whose first record is before a log offset.

        The deletion is on the disk first: after a kill, the same record of the master restarts the
        topic again.

        Raises:
            OSError: The disk refused it; the call can be repeated.
        """
        self._queues.deletions.add(name, before)
        self._queues.deletions.write()
        count = self._queues.ends_sum
        self._queues.remove_before(name, before)
        self._removed(count - self._queues.ends_sum)

    def sync_queues(self, flusher: Flusher, index_ms: int) -> None:
        """Sync the queue files written so far, and record the synced offsets.

        Args:
            index_ms: Store time up to which the index is on the disk.
        Raises:
            OSError: The disk refused it; the flusher has failed from then on.
        """
        reached, newest = self._synced_before, self._mark.read()
        if newest is not None and newest.dispatched <= flusher.durable:
            reached = newest
        self._synced_before = newest  # under load the log is always ahead of its last sync
        store_ms = self._appender.last_store_ms
        try:
            sync_files(self._queues.files)
        except OSError as error:
            flusher.fail(error)
            raise
        if reached is not None and reached.dispatched <= flusher.durable:
            self._mark.update(
                durable=reached.dispatched,
                durable_record=reached.last_record,
                durable_units=reached.units,
            )
        self.write_checkpoint(store_ms, index_ms)

    def write_checkpoint(self, store_ms: int, index_ms: int) -> None:
        """Write Apache's checkpoint; with an old one, recovery only starts earlier.

        Args:
            store_ms, index_ms: Store times up to which log and index are on the disk.
        """
        self._checkpoint.confirm = self._confirmed()
        try:
            self._checkpoint.update(physic_ms=store_ms, logics_ms=store_ms, index_ms=index_ms)
            self._checkpoint_failed = False
        except OSError as error:
            if not self._checkpoint_failed:
                self._notice(f"{self._checkpoint.path} cannot be written, retrying: {error}")
            self._checkpoint_failed = True
