"""Message store: the directory of a broker, with one append path and its readers.

    put(batch):  prepare -> encode -> pwritev -> responses -> consume queues -> dispatchers
                 (one compiled pass each; a single message is a batch of one)

    Appender        batch -> records in the log           WriteGate   refuses writes if necessary
    QueueProgress   start offset of the next recovery     Retention   removes old files

Only the thread that opened the store (the event loop's) may call it; the flusher and the index
have their own threads and access only the state named there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import StoreFull
from message_store.config import SYNC_FLUSH, StoreConfig
from message_store.descriptors import is_out_of_descriptors
from message_store.hooks import Dispatcher, TagsCodeRule
from message_store.index.index_service import IndexService
from message_store.log.batch import PutBatch
from message_store.log.commit_log import Appender, CommitLog
from message_store.log.flusher import Flusher
from message_store.log.read_ahead import LARGE_BYTES, ReadAhead
from message_store.queues.consume_queues import QueueSet
from message_store.queues.deleted_topics import Deletions
from message_store.queues.topic_table import TopicTable
from message_store.reader import StoreReader
from message_store.recovery import recover, start_position
from message_store.recovery.abort_file import AbortFile
from message_store.recovery.checkpoint import Checkpoint, RecoveryMark
from message_store.recovery.progress import QueueProgress
from message_store.recovery.store_lock import StoreLock
from message_store.recovery.unit_repair import UnitRepair
from message_store.replication.acknowledgement import Missing, Replicated
from message_store.replication.raw_append import Bytes, RawAppender
from message_store.replication.truncation import complete
from message_store.retention.log_retention import Retention
from message_store.store_copy import refuse_linked
from message_store.write_gate import DISK_FULL, WriteGate

NOTHING_CONFIRMED = 1  # in the checkpoint, where 0 means that no run has required replicas
MARK_STEP_BYTES = 1 << 20  # recovery reads less than this again


class MessageStore(StoreReader):
    """A store directory, opened for reading and appending. A context manager.

    Args:
        tags_code_rules: Rules for the tags codes of system topics, used by recovery.
        notice: Called with one line for each event that concerns the operator.
    Attributes:
        read_only: Reason why `put` refuses every message, as on a replica, or empty.
        fence: Returns the reason why `put` refuses every message now, or an empty text.
    Raises (on entering):
        StoreLocked: Another broker has the directory.
        StoreFull: The disk has no room for recovery.
        CorruptStore: Files that cannot be part of this store.
    """

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        *,
        tags_code_rules: Sequence[TagsCodeRule] = (),
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.clock, self.notice = config, clock, notice
        self.rules = tuple(tags_code_rules)
        self.root = config.root
        self.abort_file = AbortFile(self.root)
        self.topics = TopicTable()
        self.log = CommitLog(config.commitlog_dir, config.commitlog_file_bytes)
        self.queues = QueueSet(
            self.root / "consumequeue",
            config.queue_file_bytes,
            self.topics,
            Deletions(self.config_path("deletedTopics.json")),
        )
        self.appender = Appender(self.log, self.topics, config, clock)
        self.raw = RawAppender(
            self.log,
            self.appender,
            self.queues,
            self.rules,
            self._notify,
            self._restart_topic,
        )
        self.replicated = Replicated()
        self.gather_kernels = {}
        self.repair = UnitRepair(self.log, self.queues, self.rules, self._notify)
        self.read_only = ""
        self.fence: Callable[[], str] = str
        self.gate = WriteGate(self.root, self.log.directory, self._notify)
        self.retention = Retention(self)
        self.recovered: recover.Recovered | None = None
        self._dispatchers: list[Dispatcher] = []
        self._lock: StoreLock | None = None
        self._queues_synced_ms = 0
        self._confirms_alone = self._is_copy = False

    # -- open and close -------------------------------------------------------------------------

    def _notify(self, text: str) -> None:
        self.notice(text)  # read at each call: the attribute may be replaced

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        refuse_linked(self.root)
        self._lock = StoreLock(self.root)
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            undo.callback(self.log.close)
            undo.callback(self.queues.close)
            try:
                self._open(undo)
            except OSError as error:
                if error.errno in DISK_FULL:
                    raise StoreFull(
                        f"{self.root}: the disk is full, so the store cannot be recovered. No "
                        f"message is lost; free disk space and start again."
                    ) from error
                raise
            undo.pop_all()
        return self

    def _open(self, undo: ExitStack) -> None:
        crashed = self.abort_file.exists
        self.log.unreadable.notice = self.notice
        (self.root / "config").mkdir(exist_ok=True)
        self.truncations = complete(self.config, self.clock, self.notice)
        self.mark = RecoveryMark.open(self.config_path("duemq.mark"))
        undo.callback(self.mark.close)
        self._is_copy = crashed and self.abort_file.is_copied
        if self._is_copy:
            self.notice(
                f"{self.root} is a copy of a running store: it is recovered as after a power cut"
            )
            self.mark.same_boot = False
        marks = self.mark.read()
        self.log.load(synced=marks.durable if marks is not None else 0)
        self.queues.load()
        self.checkpoint = Checkpoint.load(self.root / "checkpoint")
        self.queues.until_readable(lambda: self._recover(crashed))
        self.log.sums.open(self.log.end)
        self.progress = QueueProgress(
            self.log,
            self.appender,
            self.queues,
            self.mark,
            self.checkpoint,
            self._notify,
            confirmed=self._confirmed_to_keep,
        )
        self.progress.mark_recovered()
        self.queues.lost.clear()
        self.index = IndexService(self.root / "index", self.config, self.log, self.clock)
        undo.callback(self.index.stop)
        self.index.start(
            checkpoint=self.checkpoint,
            trusted=not crashed or self.mark.same_boot,
            is_copy=self._is_copy,
        )
        self.flusher = Flusher(
            self.log,
            durable=self._synced_before(crashed),
            interval_s=self.config.flush_commitlog_interval_ms / 1_000,
            after_flush=self._after_flush,
            on_failure=self.gate.sync_failed,
        )
        self.abort_file.write()
        self.flusher.start()
        self.read_ahead = ReadAhead(self.log)
        self.read_ahead.start()

    def _recover(self, crashed: bool) -> None:
        if crashed and not self.mark.same_boot:
            self.queues.cut_at_holes()
        start, self.appender.last_record = start_position.start_of(
            self.log, self.queues, self.mark, self.checkpoint, self.notice, crashed=crashed
        )
        if not start_position.ends_at_mark(self.log, self.mark, crashed=crashed):
            self.log.sums.withdraw(start)  # another program may have written the log since
        marks = self.mark.read()
        power_cut = crashed and marks is not None and not self.mark.same_boot
        recovered = recover.recover(
            self.log,
            self.queues,
            self.rules,
            start,
            self.notice,
            torn_from=marks.durable if power_cut and marks else None,
            known_end=reached.offset if (reached := self.mark.point()) else None,
            units=self._units_before(crashed) if self.appender.last_record >= 0 else 0,
        )
        if crashed:
            recover.write_again(self.log, marks.durable if marks else start, recovered.end)
        self.queues.correct_min(self.log.min_offset)
        self.queues.deletions.fit(self.log.min_offset, recovered.end)
        self.queues.deletions.write()
        self.checkpoint.clear_offset()
        self._record_lost_bytes(recovered.end)
        self.recovered = recovered
        if recovered.records:
            self.appender.last_record = recovered.last_record
            self.appender.last_store_ms = recovered.last_store_ms
        elif self.appender.last_record >= 0:
            self.appender.last_store_ms = max(self.store_ms(self.appender.last_record), 0)
        if crashed:
            self.notice(
                f"the last run did not end cleanly: {recovered.records} records from {start} on "
                f"were checked, the log ends at {recovered.end}"
            )

    def _units_before(self, crashed: bool) -> int:
        """Return the sum of the queues' ends at the point where the walk starts."""
        point = self.mark.point(clean=not crashed)
        return point.units if point is not None else 0

    def _record_lost_bytes(self, end: int) -> None:
        """Record a truncation if the log has lost its end, or was replaced by another one."""
        marks = self.mark.read()
        if marks is None or marks.dispatched == self.log.min_offset:
            return
        if marks.dispatched > end:
            self.truncations.record_loss(end)
        elif marks.last_record >= self.log.min_offset and not start_position.record_ends_at(
            self.log, marks.last_record, marks.dispatched
        ):
            self.truncations.record_loss(0)

    def _synced_before(self, crashed: bool) -> int:
        """Return the log offset up to which the log is known to be on the disk."""
        if not crashed:
            return self.log.end
        if self._is_copy:
            return self.log.min_offset
        mark = self.mark.read()
        return min(mark.durable, self.log.end) if mark is not None else self.log.min_offset

    def __exit__(self, *exc: object) -> None:
        self.read_ahead.stop()
        self.index.stop()
        self.flusher.stop()
        try:
            if self.flusher.failure is None and not self.queues.has_backlog:
                self.progress.mark_dispatched()
                self.sync_queues()
                self.abort_file.remove()
                self.log.sums.close(self.log.end)
        except OSError as error:
            self.notice(f"{self.root} was not closed cleanly, the next start recovers it: {error}")
        self.log.sums.close()
        self.mark.close()
        self.queues.close()
        self.log.close()
        if self._lock is not None:
            self._lock.release()

    # -- append -------------------------------------------------------------------------------

    def put(self, batch: PutBatch) -> None:
        """Append every row whose status is 0 and fill its result columns.

        A row that can never be stored gets status 13, a row that cannot be stored now status 14;
        both get a remark. After the call, accepted rows are readable and their queues are written.
        """
        if self.refusal:
            self._refuse_all(batch, 0, self.refusal)
            return
        start = self.log.end
        appended = self._append(batch)
        if batch.on_appended is not None:
            batch.on_appended()
        of_topics: dict[Dispatcher, None] = {}
        batch.queue_slots.clear()
        for first, end in appended:
            self._queue_units(batch, first, end, of_topics)
        self._log_grew()
        self._wake_read_ahead(self.log.end - start)
        for dispatcher in (*self._dispatchers, *of_topics):
            dispatcher(batch)

    def _append(self, batch: PutBatch) -> list[tuple[int, int]]:
        """Append rows to the log; return first and end of the rows in each file."""
        self.appender.prepare(batch)
        store_ms = self.appender.next_store_ms()
        appended = []
        first = 0
        while first < batch.count:
            try:
                end = self.appender.append(batch, first, store_ms)
            except OSError as error:
                if not is_out_of_descriptors(error):  # otherwise the next put tries again
                    self.gate.disk_failed(error)
                self._refuse_all(batch, first, self.refusal or str(error))
                break
            if end > first:
                appended.append((first, end))
            first = end
        return appended

    def append_raw(self, offset: int, data: Bytes) -> int:
        """Append the leading records of a master's log bytes; return the number of bytes processed.

        After the call, the records are readable and their queues are written.

        Args:
            offset: Log offset of data[0].
        Raises:
            ReplicationFault: The bytes do not continue this log.
            OSError: The bytes cannot be written; the same bytes may be appended later.
        """
        try:
            taken = self.raw.append(offset, data)
        except OSError as error:
            self.gate.disk_failed(error)
            raise
        self._log_grew()
        # No read-ahead: large writes cost less into pages that do not exist.
        return taken

    def _wake_read_ahead(self, appended: int) -> None:
        ahead, end = self.read_ahead, self.log.end
        if end >= ahead.wake_at and (appended < LARGE_BYTES or end < ahead.expected):
            ahead.wake()

    def _log_grew(self) -> None:
        if self.log.end - self.progress.marked >= MARK_STEP_BYTES:
            self.progress.mark_dispatched()
        if not self.index.work.is_set():
            self.index.work.set()

    def _queue_units(
        self, batch: PutBatch, first: int, end: int, of_topics: dict[Dispatcher, None]
    ) -> None:
        try:
            self.queues.append(batch.rows, first, end, of_topics, batch.queue_slots)
        except OSError as error:
            self.gate.disk_failed(error)

    @staticmethod
    def _refuse_all(batch: PutBatch, first: int, reason: str) -> None:
        for index in range(first, batch.count):
            if batch.rows[index]["status"] == 0:
                batch.refuse(
                    index,
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"the store is not writable: {reason}",
                )

    @property
    def writable(self) -> bool:
        """Whether messages can be stored."""
        return not self.refusal

    @property
    def refusal(self) -> str:
        """Reason why messages cannot be stored, or an empty text."""
        return self.read_only or self.gate.refusal or self.fence() or self.replicated.refusal

    def check_disk(self) -> None:
        """Refuse writes if the disk is nearly full; accept them again when there is room.

        Also report parts of the log that could not be read since the last call.
        """
        self.log.unreadable.update()
        if self.flusher.failure is not None:
            return
        if self.disk_used_ratio * 100 > self.config.disk_warning_percent:
            if not self.gate.refusal:
                self.gate.disk_failed(OSError(errno.ENOSPC, "no space left"))
            return
        if self.gate.refusal:
            try:
                self.queues.catch_up()
            except OSError:
                return
            self.gate.refusal = ""
            if self.flusher.failure is not None:  # it failed meanwhile, in its thread
                self.gate.sync_failed(self.flusher.failure)
                return
            self.progress.mark_dispatched()
            self.notice("the disk accepts writes again, and the broker accepts messages")

    @property
    def disk_used_ratio(self) -> float:
        """Used share of the disk that holds the commit log, 0..1."""
        return self.gate.disk_used_ratio

    @property
    def last_record(self) -> int:
        """Log offset of the last record, -1 if the log is empty."""
        return self.appender.last_record

    def config_path(self, name: str) -> Path:
        """Return the path of a file in the store's config directory."""
        return self.root / "config" / name

    def add_dispatcher(self, dispatcher: Dispatcher, *, topic: str = "") -> None:
        """Register a function that is called with every batch after it was appended.

        Args:
            topic: Call it only with batches that have a message in a queue of this topic.
        """
        self._dispatchers_of(topic).append(dispatcher)

    def remove_dispatcher(self, dispatcher: Dispatcher, *, topic: str = "") -> None:
        """Remove a function that `add_dispatcher` registered with the same topic."""
        self._dispatchers_of(topic).remove(dispatcher)

    def _dispatchers_of(self, topic: str) -> list[Dispatcher]:
        return self.queues.dispatchers_of(topic) if topic else self._dispatchers

    def detach_topic(self, name: str) -> Path | None:
        """Detach a topic's queues; return the directory that `topic_removal` erases."""
        return self.progress.detach_topic(name)

    def _restart_topic(self, name: str, before: int) -> None:
        """Remove the queues of a topic that the master of a replica has deleted.

        Queues whose first record is at or after the log offset `before` are the new topic's.
        """
        self.flush()  # the messages must be on the disk before their removal is
        self.progress.restart_topic(name, before)

    # -- durability ---------------------------------------------------------------------------

    def require_replicas(self) -> None:
        """Require replicas for `confirm_offset`, which begins at its value in the checkpoint.

        The checkpoint has 0 if no run has required replicas; then all messages are confirmed.
        """
        self.replicated.require(min(self.checkpoint.confirm or self.log.end, self.log.end))
        self.progress.write_checkpoint(self.checkpoint.physic_ms, self.checkpoint.index_ms)

    def confirm_without_replicas(self) -> None:
        """Confirm all messages, also those of an earlier run, without replicas from now on."""
        self._confirms_alone = True

    def _confirmed_to_keep(self) -> int:
        """Return `confirm_offset` for the checkpoint; 0 while no run has required replicas.

        Until this run requires replicas or confirms without them, the value of the last run stays:
        a start flushes the log before its role is known.
        """
        kept = self.checkpoint.confirm
        if self.replicated.required or (kept and self._confirms_alone):
            return max(self.confirm_offset, NOTHING_CONFIRMED)
        return max(min(kept, self.log.end), NOTHING_CONFIRMED) if kept else 0

    @property
    def is_unconfirmed(self) -> bool:
        """Whether replicas are required, and no message of the log was ever confirmed."""
        return self.replicated.required and self.replicated.offset <= NOTHING_CONFIRMED

    async def wait_durable(self, end_offset: int) -> bool:
        """Wait until the log is on the disk; return False after syncFlushTimeout."""
        return await self.flusher.wait(end_offset, self.config.sync_flush_timeout_ms / 1_000)

    async def wait_confirmed(self, end_offset: int) -> Missing | None:
        """Wait until a message is confirmed; return the missing condition after a time limit.

        A message needs the disk (group commit) with SYNC_FLUSH, replicas with SYNC_MASTER;
        otherwise it is confirmed at once.
        """
        if self.config.flush_disk_type == SYNC_FLUSH and not await self.wait_durable(end_offset):
            return Missing.DISK
        return await self.replicated.wait(end_offset) if self.replicated.required else None

    def flush(self) -> None:
        """Sync log and queues now, and record this in the recovery mark."""
        self.progress.mark_dispatched()
        self.flusher.flush()
        self.sync_queues()

    def _after_flush(self, log_end: int) -> None:
        self.log.sums.seal(log_end)
        now = self.clock.now_ms()
        if abs(now - self._queues_synced_ms) >= self.config.flush_queue_interval_ms:
            self._queues_synced_ms = now
            self.sync_queues()

    def sync_queues(self) -> None:
        """Sync the queue files written so far and record that in mark and checkpoint.

        Raises:
            OSError: A sync failed; the flusher has recorded the failure.
        """
        self.progress.sync_queues(self.flusher, self.index.safe_ms)
