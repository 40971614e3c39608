"""Group commit: one thread syncs the log and completes all pending appends.

The log is synced with fdatasync, which releases the GIL; all messages appended during a
sync share the next one. Queues are synced less often.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable

from message_store.descriptors import is_out_of_descriptors
from message_store.log.commit_log import CommitLog
from message_store.queues.consume_queue import FileCache

logger = logging.getLogger(__name__)
STARVED_S = 0.1  # pause before the next attempt if no descriptor was free
MANY_FILES = 256  # from here on, a sync of the file system takes less time than one of each file


class Flusher:
    """Thread that syncs the log of a store.

    Attributes:
        durable: Log offset up to which the log is on the disk.
        failure: Error that stopped the thread; `durable` does not advance after it.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        durable: int,
        interval_s: float,
        after_flush: Callable[[int], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._after_flush = after_flush
        self._on_failure = on_failure
        self._wake = threading.Condition()
        self._syncing = threading.Lock()
        self._requested_end = 0
        self._stopping = False
        self._waiters: list[tuple[int, asyncio.Future[bool], asyncio.AbstractEventLoop]] = []
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self.durable = durable
        self.failure: OSError | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Sync the rest of the log and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Return True once the log before `offset` is on the disk, False after the timeout."""
        if offset <= self.durable:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                return await self.request(offset)
        except TimeoutError:
            return offset <= self.durable  # a late loop learns of the sync after the timeout

    def request(self, offset: int) -> asyncio.Future[bool]:
        """Sync as soon as possible; the result is True once the log before `offset` is on the disk.

        It is False after a failed sync. After the thread has ended, the future stays pending.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._wake:
            if offset <= self.durable:  # a sync ended before the lock was taken
                future.set_result(True)
                return future
            if self.failure is not None:
                future.set_result(False)
                return future
            self._waiters.append((offset, future, loop))
            self._requested_end = max(self._requested_end, offset)
            self._wake.notify()
        return future

    def when_durable(self, offset: int, call: Callable[[], None]) -> None:
        """Sync as soon as possible; call `call` on the event loop once `offset` is durable.

        After a failed sync, `call` is never called.
        """

        def done(synced: asyncio.Future[bool]) -> None:
            if not synced.cancelled() and synced.result():
                call()

        self.request(offset).add_done_callback(done)

    def _run(self) -> None:
        starved = False
        while True:
            with self._wake:
                if not self._stopping and (starved or self._requested_end <= self.durable):
                    self._wake.wait(STARVED_S if starved else self._interval_s)
                stopping = self._stopping
            try:
                self.flush()
                starved = False
            except OSError as error:
                if self.failure is None and not stopping:
                    starved = True  # not a fault of the disk: retry
                    continue
                self._end(error)
                return
            except Exception as error:  # such as a lack of memory
                logger.exception("the flusher ends")
                self._end(OSError(errno.EIO, f"{type(error).__name__}: {error}"))
                return
            if stopping:
                return

    def flush(self) -> None:
        """Sync the log now, in the calling thread.

        Linux reports lost pages only once, to the first thread that syncs; later and concurrent
        syncs of the same file succeed. Therefore threads sync one at a time, and after the first
        failure no thread syncs again.

        Raises:
            OSError: This sync or an earlier one failed; messages appended since may be lost.
        """
        with self._syncing:
            self._flush()

    def _flush(self) -> None:
        if self.failure is not None:
            raise OSError(self.failure.errno, f"a sync has failed before: {self.failure}")
        end = self._log.end
        try:
            for file in self._log.files_from(self.durable):
                if file.base < end:
                    file.sync()
            self.durable = max(self.durable, end)
            self._complete(True)
            self._after_flush(end)
        except OSError as error:
            self.fail(error)
            raise

    def fail(self, error: OSError) -> None:
        """Record that a file of the store could not be synced; `durable` does not advance any more.

        May be called in any thread; only the first error is recorded. A lack of descriptors is
        ignored, because it loses no data.
        """
        if not is_out_of_descriptors(error):
            self._end(error)

    def _end(self, error: OSError) -> None:
        with self._wake:
            if self.failure is not None:
                return
            self.failure = error
        self._on_failure(error)
        self._complete(False)

    def _complete(self, done: bool) -> None:
        with self._wake:
            ready = [w for w in self._waiters if not done or w[0] <= self.durable]
            self._waiters = [w for w in self._waiters if done and w[0] > self.durable]
        for _, future, loop in ready:
            loop.call_soon_threadsafe(_resolve, future, done)


def _resolve(future: asyncio.Future[bool], done: bool) -> None:
    if not future.done():
        future.set_result(done)


def sync_files(files: FileCache) -> None:
    """Sync the queue files written since the last call and the names of new ones; seal some.

    Removed files need no sync.

    Raises:
        OSError: A sync failed; the next call syncs all of these files again.
    """
    paths = files.take_dirty()
    try:
        if len(paths) < MANY_FILES or files.has_foreign or not files.file_system.sync():
            for path in paths:
                _sync_file(path)
    except OSError:
        for path in paths:
            files.mark_dirty(path)
        raise
    if files.sums is not None:
        files.sums.seal_some(paths)


def _sync_file(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)  # it may be a directory
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)
