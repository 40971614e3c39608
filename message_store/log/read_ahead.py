"""Preallocation of log pages ahead of the append position.

At the first write to a page of a file, the kernel allocates and zeroes a page, which can take
longer than the rest of an append (tens of us on virtual machines that return memory to their host).
A thread reads the empty part of the log file after its end. This puts the pages into the page
cache, so that an append only copies. It reads small pieces, because it may share a core with the
event loop. Large appends take less processor time without it, because Linux allocates many pages
of a large write at once, which it does not do for reads at random; so they wake the thread only if
they were announced (`expect`). Then the work is done before they are due, or by another core.

The file is read as if at random. After sequential reads, Linux caches up to 2 MiB as one folio, and
each write to ext4 then passes all blocks of the folio: 10 us more for a message of 300 bytes.
"""

from __future__ import annotations

import os
import threading

from message_store.log.commit_log import CommitLog

AHEAD_BYTES = 32 << 20
REFILL_BYTES = 4 << 20  # bytes that are appended before the thread is woken again
STEP_BYTES = 256 << 10
EXPECTED_BYTES_MAX = 512 << 20
LARGE_BYTES = 64 << 10  # appends from here on cost less into pages that do not exist


class ReadAhead:
    """Thread that reads ahead of the end of a log.

    Attributes:
        wake_at: End of the log at which the thread must be woken, by the next append below
            LARGE_BYTES or below `expected`.
        expected: End of the log after the appends that are announced.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.reached = 0  # log offset up to which pages are loaded
        self.wake_at = 0
        self.expected = 0
        self._buffer = bytearray(STEP_BYTES)
        self._work = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self.wake()

    def stop(self) -> None:
        """End the thread; the log's files may be closed afterwards."""
        self._stopping = True
        self._work.set()
        self._thread.join()

    def wake(self) -> None:
        """Wake the thread; the log has reached `wake_at`."""
        if not self._work.is_set():
            self._work.set()

    def expect(self, size: int) -> None:
        """Prepare pages for `size` bytes that will soon be appended at once.

        The thread does before they are due what would take longer in the appends, on machines whose
        host takes free pages back. The pages of a further file are prepared once it exists, while
        the appends are made.
        """
        end = self._log.end + min(size, EXPECTED_BYTES_MAX)
        self.expected = max(self.expected, end)
        self._work.set()

    def _run(self) -> None:
        while True:
            self._work.wait()
            if self._stopping:
                return
            self.work()

    def work(self) -> bool:
        """Read ahead if few read pages remain after the log's end; return whether it did."""
        if not self._work.is_set():
            return False
        self._work.clear()
        self._touch()
        return True

    def _touch(self) -> None:
        """Read after the log's end, or after the end of the last call, in the file of the end."""
        end = self._log.end
        file = next((f for f in self._log.files_from(end) if f.base <= end), None)
        if file is None:
            self.wake_at = end + 1  # the next append creates the file
            return
        file_end = file.base + file.size
        limit = min(max(end + AHEAD_BYTES, self.expected), file_end)
        self.wake_at = file_end if limit == file_end else end + REFILL_BYTES
        position = max(end, self.reached)
        try:
            fd = os.open(file.path, os.O_RDONLY)
        except OSError:
            return  # only performance is lost; the append reports the error
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            while position < limit and not self._stopping:
                size = min(STEP_BYTES, limit - position)
                os.preadv(fd, [memoryview(self._buffer)[:size]], position - file.base)
                position += size
                self.reached = max(position, self.reached)
        except OSError:
            pass
        finally:
            os.close(fd)
