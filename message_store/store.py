"""The message store: one append path and many readers.

    put(batch):  prepare -> encode -> pwritev -> consume queues -> dispatchers
                 (one compiled pass each; a single message is a batch of one)

Only the thread that opened the store (the event loop's) may call it; the flusher and the index
have threads of their own and touch only what is named there.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from message_store.clock import Clock
from message_store.config import StoreConfig
from message_store.descriptors import DescriptorReserve
from message_store.errors import StoreFull
from message_store.hooks import Dispatcher, TagsCodeRule
from message_store.index.index_file import IndexService
from message_store.kernels import encode
from message_store.kernels.kernel import entry
from message_store.layout import PUT
from message_store.log.batch import PutBatch
from message_store.log.commit_log import CommitLog
from message_store.log.flusher import Flusher, sync_files
from message_store.log.read_ahead import ReadAhead
from message_store.queues.consume_queues import QueueSet
from message_store.queues.deleted_topics import Deletions
from message_store.queues.topic_table import TopicTable
from message_store.reader import StoreReader
from message_store.recovery import recover
from message_store.recovery.abort_file import AbortFile
from message_store.recovery.checkpoint import Checkpoint, Marks, RecoveryMark
from message_store.recovery.store_lock import StoreLock
from message_store.retention.log_retention import Retention

OUT_BYTES_MIN = 1 << 20
OUT_BYTES_MAX = 32 << 20
RECORD_EXTRA_BYTES_MAX = 65_536  # a record may be maxMessageSize + this
CLOCK_STEP_MS_MAX = 1_000  # a clock that falls back by less is held, so that time stands still
SERVICE_NOT_AVAILABLE = 14
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
MARK_STEP_BYTES = 1 << 20
Encoders = tuple[Callable[..., tuple[int, int, int]], Callable[..., tuple[int, int, int]]]


class MessageStore(StoreReader):
    """A store directory, opened for reading and appending. A context manager.

    Args:
        tags_code_rules: how tags codes of system topics are made; needed before recovery.
        notice: called with one line for everything an operator should know.
    Raises (on entering):
        StoreLocked: Another broker has the directory.
        StoreFull: No room for what recovery has to write.
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
        self.descriptors = DescriptorReserve()
        self.log = CommitLog(config.commitlog_dir, config.commitlog_file_bytes)
        self.queues = QueueSet(
            self.root / "consumequeue",
            config.queue_file_bytes,
            self.topics,
            Deletions(self.config_path("deletedTopics.json")),
        )
        self.retention = Retention(self)
        self.recovered: recover.Recovered | None = None
        self._dispatchers: list[Dispatcher] = []
        self._out: npt.NDArray[np.uint8] = np.empty(OUT_BYTES_MIN, np.uint8)
        self._encoders: dict[bool, Encoders] = {}  # by whether the staging buffer is writable
        self._last_store_ms = 0
        self._last_record = -1
        self._marked = 0
        self._refusal = ""  # why writes are refused; empty: they are taken
        self._lock: StoreLock | None = None
        self._queues_synced_ms = 0
        self._mark_before: Marks | None = None  # as it was when the queues were synced last
        self._checkpoint_failed = False

    # -- life ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = StoreLock(self.root)
        with ExitStack() as undo:
            undo.callback(self._lock.release)
            undo.callback(self.descriptors.close)
            undo.callback(self.log.close)
            undo.callback(self.queues.close)
            try:
                self._open(undo)
            except OSError as error:
                if error.errno in DISK_FULL:
                    raise StoreFull(
                        f"{self.root}: the disk is full, so the store cannot be recovered. Nothing "
                        f"is lost; make room there and start again."
                    ) from error
                raise
            undo.pop_all()
        return self

    def _open(self, undo: ExitStack) -> None:
        crashed = self.abort_file.exists
        self.log.unreadable.notice = self.notice
        (self.root / "config").mkdir(exist_ok=True)
        self.mark = RecoveryMark.open(self.config_path("duemq.mark"))
        undo.callback(self.mark.close)
        marks = self.mark.read()
        self.log.load(synced=marks.durable if marks is not None else 0)
        self.queues.load()
        self.checkpoint = Checkpoint.load(self.root / "checkpoint")
        self.queues.until_readable(lambda: self._recover(crashed))
        self._mark_recovered()
        self.index = IndexService(
            self.root / "index", self.config, self.log, self.clock, self.descriptors
        )
        undo.callback(self.index.stop)
        self.index.start(checkpoint=self.checkpoint, trusted=not crashed or self.mark.same_boot)
        self.flusher = Flusher(
            self.log,
            durable=self._synced_before(crashed),
            interval_s=self.config.flush_commitlog_interval_ms / 1_000,
            after_flush=self._after_flush,
            on_failure=self._flush_failed,
            reserve=self.descriptors,
        )
        self.abort_file.write()
        self.flusher.start()
        self.read_ahead = ReadAhead(self.log)
        self.read_ahead.start()

    def _recover(self, crashed: bool) -> None:
        if crashed and not self.mark.same_boot:
            self.queues.cut_at_holes()
        start, self._last_record = recover.start_of(
            self.log, self.queues, self.mark, self.checkpoint, self.notice, crashed=crashed
        )
        marks = self.mark.read()
        power_cut = crashed and marks is not None and not self.mark.same_boot
        found = recover.recover(
            self.log, self.queues, self.rules, start, self.notice,
            torn_from=marks.durable if power_cut and marks else None,
            known_end=reached.offset if (reached := self.mark.point()) else None,
        )  # fmt: skip
        if crashed:
            recover.write_again(self.log, marks.durable if marks else start, found.end)
        self.queues.correct_min(self.log.min_offset)
        self.queues.deletions.fit(self.log.min_offset, found.end)
        self.queues.deletions.write()
        self.recovered = found
        if found.records:
            self._last_record, self._last_store_ms = found.last_record, found.last_store_ms
        elif self._last_record >= 0:
            self._last_store_ms = max(self.store_ms(self._last_record), 0)
        if crashed:
            self.notice(
                f"the last run did not end cleanly: {found.records} records from {start} on were "
                f"checked, the log ends at {found.end}"
            )

    def _synced_before(self, crashed: bool) -> int:
        """Return how much of the log is surely on the disk: after a kill not all that was found."""
        if not crashed:
            return self.log.end
        mark = self.mark.read()
        return min(mark.durable, self.log.end) if mark is not None else self.log.min_offset

    def _mark_recovered(self) -> None:
        """Every record is in its queue now; a mark beyond the log's end is void."""
        marks = self.mark.read()
        if marks is not None and marks.durable > self.log.end:
            self.mark.update(durable=0, durable_record=-1, durable_units=0)
        self._mark_dispatched()
        self.queues.lost.clear()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.read_ahead.stop()
        self.index.stop()
        self.flusher.stop()
        try:
            if self.flusher.failure is None and not self.queues.behind:
                self._mark_dispatched()
                self.sync_queues()
                self.abort_file.remove()
        except OSError as error:
            self.notice(f"{self.root} was not closed cleanly, the next start recovers it: {error}")
        self.mark.close()
        self.queues.close()
        self.log.close()
        self.descriptors.close()
        if self._lock is not None:
            self._lock.release()

    # -- append -------------------------------------------------------------------------------

    def put(self, batch: PutBatch) -> None:
        """Append every row whose status is 0 and fill its result columns.

        A row that can never be stored gets status 13, one that cannot be stored now 14; both
        with a remark. After the call accepted rows are readable and their queues are written.
        """
        count = batch.count
        if self._refusal:
            self._refuse_all(batch, 0, count)
            return
        self._prepare(batch)
        store_ms = self._next_store_ms()
        first = 0
        while first < count:
            try:
                end = self._append(batch, first, store_ms)
            except OSError as error:
                self._disk_failed(error)
                self._refuse_all(batch, first, count)
                break
            if end > first:
                self._queue_units(batch, first, end)
            first = end
        self._mark_dispatched(step_bytes=MARK_STEP_BYTES)
        self.index.notify()
        self.read_ahead.notify(self.log.end)
        for dispatcher in self._dispatchers:
            dispatcher(batch)

    def _prepare(self, batch: PutBatch) -> None:
        rows, count = batch.rows, batch.count
        record_max = self.config.commitlog_file_bytes - encode.BLANK_TAIL_BYTES
        body_max = record_max if batch.trusted else self.config.message_bytes_max
        record_max = min(record_max, body_max + RECORD_EXTRA_BYTES_MAX)
        prepare, _ = self._encoders_of(batch)
        while True:
            at, total, refused = prepare(
                rows, count, batch.staging, self.topics.arrays,
                body_max, record_max,
            )  # fmt: skip
            if at == count:
                break
            self.topics.slot(int(rows[at]["topic_index"]), int(rows[at]["queue_id"]), create=True)
        if refused:
            for at in np.flatnonzero(batch.filled["status"] == encode.MESSAGE_ILLEGAL).tolist():
                batch.remarks.setdefault(at, self._illegal_remark(batch, at))
        if total > self._out.size and self._out.size < OUT_BYTES_MAX:
            self._out = np.empty(min(int(total) * 2, OUT_BYTES_MAX), np.uint8)

    def _encoders_of(self, batch: PutBatch) -> Encoders:
        """Return the kernels for a batch; its arrays must be as `PutBatch` makes them."""
        rows, staging = batch.rows, batch.staging
        assert rows.flags.c_contiguous
        assert staging.flags.c_contiguous
        found = self._encoders.get(staging.flags.writeable)
        if found is None:
            assert rows.dtype == PUT
            assert staging.dtype == np.uint8
            find: Callable[..., Any] = entry
            arrays = self.topics.arrays
            found = self._encoders[staging.flags.writeable] = (
                find(encode.prepare, rows, 0, staging, arrays, 0, 0),
                find(encode.encode, rows, (0, 0), staging, arrays, self._out, 0, 0, 0),
            )
        return found

    def _illegal_remark(self, batch: PutBatch, at: int) -> str:
        row = batch.rows[at]
        return (
            f"the message is illegal: body {row['body_len']} bytes (maxMessageSize is "
            f"{self.config.message_bytes_max}), properties {row['prop_len']} bytes (at most "
            f"{encode.PROPERTY_BYTES_MAX}), queue {row['queue_id']}"
        )

    def _next_store_ms(self) -> int:
        now = self.clock.now_ms()
        if now < self._last_store_ms <= now + CLOCK_STEP_MS_MAX:
            now = self._last_store_ms
        self._last_store_ms = now
        return now

    def _append(self, batch: PutBatch, first: int, store_ms: int) -> int:
        """Encode and write what fits into the current file; return the first row left."""
        log = self.log
        file = log.file_at_end or self.descriptors.run(log.writable_file)
        left = file.base + file.size - log.end
        _, encode_rows = self._encoders_of(batch)
        end, size, last = encode_rows(
            batch.rows, (first, batch.count), batch.staging, self.topics.arrays, self._out,
            log.end, left, store_ms,
        )  # fmt: skip
        if size == 0 and end < batch.count:
            needed = int(batch.rows[end]["record_size"])
            if needed + encode.BLANK_TAIL_BYTES > left:
                log.close_file()
            else:
                self._out = np.empty(needed, np.uint8)
            return end
        if size:
            try:
                file.write(log.end - file.base, self._out.data[:size])
            except OSError:
                encode.unnumber(batch.rows, first, end, self.topics.arrays)
                with suppress(OSError):  # records that were written whole are refused all the same
                    file.zero_from(log.end - file.base)
                raise
            self._last_record = last
            log.end += size
        return end

    def _queue_units(self, batch: PutBatch, first: int, end: int) -> None:
        try:
            self.queues.append(batch.rows, first, end)
        except OSError as error:
            self._disk_failed(error)

    def _mark_dispatched(self, *, step_bytes: int = 0) -> None:
        """Note how far the queues are; every `step_bytes` is enough, recovery walks the rest."""
        if self.log.end - self._marked >= step_bytes and not self.queues.behind:
            self.mark.update(
                dispatched=self.log.end,
                last_record=self._last_record,
                units=self.queues.ends_sum,
            )
            self._marked = self.log.end

    def _refuse_all(self, batch: PutBatch, first: int, end: int) -> None:
        for at in range(first, end):
            if batch.rows[at]["status"] == 0:
                batch.refuse(
                    at, SERVICE_NOT_AVAILABLE, f"the store is not writable: {self._refusal}"
                )

    def _disk_failed(self, error: OSError) -> None:
        what = "the disk is full" if error.errno in DISK_FULL else str(error)
        self._refusal = f"{what} ({self.root}, {self.disk_used_ratio:.0%} used)"
        self.notice(
            f"writes are refused: {self._refusal}. Make room; the broker goes on by itself."
        )

    def _flush_failed(self, error: OSError) -> None:
        self._refusal = f"the store cannot be synced: {error}"
        self.notice(f"writes are refused: {self._refusal}. Check the disk and restart the broker.")

    @property
    def writable(self) -> bool:
        """Whether messages are taken."""
        return not self._refusal

    @property
    def refusal(self) -> str:
        """Why they are not, or an empty text."""
        return self._refusal

    def check_disk(self) -> None:
        """Refuse writes on a nearly full disk; take them again when there is room.

        Report places of the log that could not be read since the last call.
        """
        self.log.unreadable.look()
        if self.flusher.failure is not None:
            return
        if self.disk_used_ratio * 100 > self.config.disk_warning_percent:
            if not self._refusal:
                self._disk_failed(OSError(errno.ENOSPC, "no space left"))
            return
        if self._refusal:
            try:
                self.queues.catch_up()
            except OSError:
                return
            self._refusal = ""
            if self.flusher.failure is not None:  # meanwhile, in its thread
                self._flush_failed(self.flusher.failure)
                return
            self._mark_dispatched()
            self.notice("there is room on the disk again: messages are taken")

    @property
    def disk_used_ratio(self) -> float:
        """Used share of the disk that holds the commit log, 0..1."""
        used, free = self.disk_bytes
        return used / max(used + free, 1)

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Used and free bytes of the disk that holds the commit log."""
        usage = shutil.disk_usage(self.log.directory if self.log.directory.is_dir() else self.root)
        return usage.used, usage.free

    @property
    def last_record(self) -> int:
        """Log offset of the last record, -1 if the log is empty."""
        return self._last_record

    def config_path(self, name: str) -> Path:
        """Return the path of a file in the store's config directory."""
        return self.root / "config" / name

    def add_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Have `dispatcher` called with every batch after it was appended."""
        self._dispatchers.append(dispatcher)

    def detach_topic(self, name: str) -> Path | None:
        """Take a topic's queues out of the store; return what is to be erased (`topic_removal`)."""
        before = self.queues.ends_sum
        detached = self.queues.detach_topic(name, self.log.end)
        gone = before - self.queues.ends_sum
        marks = self.mark.read()
        if marks is not None:  # else a start after a kill would miss these units
            self.mark.update(durable_units=max(marks.durable_units - gone, 0))
        self._mark_before = None
        self._mark_dispatched()
        return detached

    # -- durability ---------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """Log offset up to which everything is on the disk."""
        return self.flusher.durable

    async def wait_durable(self, end_offset: int, *, always: bool = False) -> bool:
        """Wait for group commit with SYNC_FLUSH; False after syncFlushTimeout. Else True at once.

        With `always`: wait for the disk with ASYNC_FLUSH too.
        """
        if not (self.config.sync_flush or always):
            return True
        return await self.flusher.wait(end_offset, self.config.sync_flush_timeout_ms / 1_000)

    def flush(self) -> None:
        """Sync log and queues now, and mark all of both as synced."""
        self._mark_dispatched()
        self.flusher.flush()
        self.sync_queues()

    def _after_flush(self, log_end: int) -> None:
        now = self.clock.now_ms()
        if abs(now - self._queues_synced_ms) >= self.config.flush_queue_interval_ms:
            self._queues_synced_ms = now
            self.sync_queues()

    def sync_queues(self) -> None:
        """Sync the queue files written so far and note in mark and checkpoint how far they are.

        Raises:
            OSError: The disk refused it; nothing is promised from then on.
        """
        reached, newest = self._mark_before, self.mark.read()
        if newest is not None and newest.dispatched <= self.flusher.durable:
            reached = newest
        self._mark_before = newest  # under load the log is always ahead of its last sync
        times = self._last_store_ms
        try:
            sync_files(self.queues.files)
        except OSError as error:
            self.flusher.fail(error)
            raise
        if reached is not None and reached.dispatched <= self.flusher.durable:
            self.mark.update(
                durable=reached.dispatched,
                durable_record=reached.last_record,
                durable_units=reached.units,
            )
        self._write_checkpoint(times)

    def _write_checkpoint(self, times: int) -> None:
        """Write Apache's checkpoint; an old one only makes a recovery start earlier."""
        try:
            self.checkpoint.update(physic_ms=times, logics_ms=times, index_ms=self.index.safe_ms)
            self._checkpoint_failed = False
        except OSError as error:
            if not self._checkpoint_failed:
                self.notice(f"{self.checkpoint.path} cannot be written, it is tried again: {error}")
            self._checkpoint_failed = True
