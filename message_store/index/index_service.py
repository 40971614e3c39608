"""Key index: all index files of a store, and the thread that updates them from the log.

The index is a projection of the log. Its thread reads the log a few tens of ms after the appends,
so that sends do not wait for it. A query first indexes the end of the log if it is short. After a
restart, the header of the newest file has the log offset to continue from.

The lock is held for one step, a few ms, so that the event loop can query while a large index is
rebuilt. Files are read without the lock (see `kernels.index`). Invalid files are removed and
rebuilt from the log. Items of records that a failed disk has lost are removed at the start.

If the disk is full, the index pauses, and continues on its own when there is room.
"""

from __future__ import annotations

import datetime
import logging
import shutil
import threading
from pathlib import Path
from typing import Self

import numpy as np

from duemq_common.clock import Clock
from duemq_common.disk_errors import remedy_of
from duemq_common.errors import CorruptStore, StoreError
from duemq_common.existence import exists, is_directory
from duemq_common.text import index_hash
from message_store import layout
from message_store.config import StoreConfig
from message_store.index.index_file import IndexFile
from message_store.kernels import index as kernels
from message_store.kernels import scan
from message_store.kernels.verify import find_record
from message_store.layout import Rows
from message_store.log.commit_log import CommitLog, LogFile
from message_store.log.frames import frame_at
from message_store.recovery.checkpoint import Checkpoint

logger = logging.getLogger(__name__)
NAME_FORMAT = "%Y%m%d%H%M%S"
NAME_DIGITS = 17  # followed by three digits of milliseconds
PAUSE_S = 0.03  # pause between two steps of the thread; longer pauses make larger batches
BATCH_KEYS = kernels.KEYS_PER_RECORD_MAX + 8_192  # maximum keys indexed in one step
CATCH_UP_BYTES_MAX = 4 << 20  # maximum bytes of the log that are indexed while a query waits
STOP_BYTES_MAX = 256 << 20  # maximum bytes indexed at a stop; the next start indexes the rest


class IndexService:
    """Index files of a store, and the thread that updates them.

    Attributes:
        safe_ms: Store time up to which the index is on the disk, for the checkpoint.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        log: CommitLog,
        clock: Clock,
    ) -> None:
        self._directory, self._config, self._log, self._clock = directory, config, log, clock
        self._files: list[IndexFile] = []
        self._unsynced: list[IndexFile] = []  # full files that the thread syncs
        self._position = 0  # log offset of the first record that is not completely indexed
        self._indexed = 0, 0  # log offset of a record, number of its keys that are indexed
        self._lock = threading.Lock()
        self.work = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._keys = np.zeros(BATCH_KEYS, layout.KEYED)
        self._scratch = np.zeros(1, layout.SCANNED)
        self._sync_failed = False
        self._paused = False  # the disk is full; logged once
        self.safe_ms = 0

    @property
    def enabled(self) -> bool:
        """messageIndexEnable."""
        return self._config.index_enable

    @property
    def lag_bytes(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return max(self._log.end - self._position, 0) if self.enabled else 0

    # -- thread -------------------------------------------------------------------------------

    def start(self, *, checkpoint: Checkpoint, trusted: bool, is_copy: bool = False) -> Self:
        """Open the files and start the thread.

        Args:
            trusted: Whether all written data exist. If not (after a power cut), only files up to
                the time of the checkpoint are used.
            is_copy: Whether the files were copied while they were written; then only full ones up
                to the time of the checkpoint are used.
        Raises:
            CorruptStore: A file of another size or with a stray name.
        """
        if not self.enabled:
            return self
        self._directory.mkdir(exist_ok=True)
        self.safe_ms = checkpoint.index_ms
        self._load(None if trusted else checkpoint.index_ms, is_copy=is_copy)
        self._cut(self._log.end)
        if self._files:
            self._position = self._end_of(self._files[-1])
        self._position = min(max(self._position, self._log.min_offset), self._log.end)
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)
        self._thread.start()
        self.work.set()
        return self

    def _load(self, safe_ms: int | None, *, is_copy: bool = False) -> None:
        """Open the files up to the first invalid one; remove it and all later ones."""
        slots, items = self._config.index_slots_max, self._config.index_entries_max
        broken, removed = "", list[Path]()
        for path in sorted(self._directory.iterdir()):
            if not (path.name.isascii() and path.name.isdigit() and len(path.name) == NAME_DIGITS):
                raise CorruptStore(
                    path, 0, "its name is not a time", "Move it out of this directory."
                )
            if not broken and path.stat().st_size == 0:
                broken = "it is empty"
            if not broken:
                file = IndexFile(path, slots, items, create=False)
                if not file.is_sound:
                    broken = f"its header {file.header} is invalid"
                elif safe_ms is not None and file.end_ms > safe_ms:
                    broken = "it was not on the disk when the machine stopped"
                elif is_copy and not file.is_full:
                    broken = "it was copied while the broker wrote it"
                else:
                    self._files.append(file)
            if broken:
                logger.warning("%s is removed and rebuilt from the log: %s", path, broken)
                removed.append(path)
        while removed:  # newest first, so that an error leaves no hole
            removed.pop().unlink()

    def _cut(self, log_end: int) -> None:
        """Remove the items of records after the end of the log, which were lost."""
        for file in reversed(self._files):
            if file.end_phys < log_end:
                return
            if count := file.cut(log_end):
                logger.warning("%s: %d keys of lost records are removed", file.path, count)

    def truncate(self, log_end: int) -> None:
        """Remove the items of records at or after a log offset, while the store is closed.

        A disabled index is removed, because it would not match the log later.

        Raises:
            CorruptStore: A file of another size or with a stray name.
            OSError: A file cannot be changed.
        """
        if not is_directory(self._directory):
            return
        if not self.enabled:
            shutil.rmtree(self._directory)
            return
        self._load(None)
        try:
            self._cut(log_end)
            for file in self._files:
                file.sync()
        finally:
            for file in self._files:
                file.close()
            self._files.clear()

    def _end_of(self, newest: IndexFile) -> int:
        """Return the log offset to continue at, after the last completely indexed record."""
        record = newest.end_phys
        if newest.is_full or newest.is_empty:  # some keys of the record may have had no room
            self._indexed = (record, self._keys_indexed(record))
            return record
        row = frame_at(self._log, record)
        return record + (int(row["record_size"]) if row is not None else 0)

    def _keys_indexed(self, record: int) -> int:
        count = 0
        for file in reversed(self._files):
            keys = file.keys_of_last(record)
            count += keys
            if keys == 0 and not file.is_empty:
                break
        return count

    def stop(self) -> None:
        """Index up to STOP_BYTES_MAX of the rest of the log, sync, end the thread."""
        if self._thread is None:
            return
        self._stopping.set()
        self.work.set()
        self._thread.join()
        self.catch_up(bytes_max=STOP_BYTES_MAX)
        self._unsynced += self._files[-1:]
        self.sync()
        for file in self._files:
            file.close()

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            self.work.wait()
            self.work.clear()
            while self._step(self._log.end) and not self._stopping.is_set():
                self.sync()

    def sync(self) -> None:
        """Sync the files that are complete; after a failure `safe_ms` does not change."""
        while self._unsynced:
            file = self._unsynced.pop(0)
            if self._sync_failed:
                continue
            try:
                if exists(file.path):
                    file.sync()
            except OSError as error:  # a later sync could succeed without the lost pages
                self._sync_failed = True
                text = "%s cannot be synced: %s. A power cut may lose the index from here on"
                logger.warning(text, file.path, error)
                continue
            self.safe_ms = file.end_ms

    # -- indexing -----------------------------------------------------------------------------

    def catch_up(self, *, bytes_max: int = CATCH_UP_BYTES_MAX) -> None:
        """Index the log up to its end, at most `bytes_max` of it. Any thread may call it."""
        if self.enabled:
            target = min(self._log.end, self._position + bytes_max)
            while self._step(target):
                pass

    def _step(self, target: int) -> bool:
        """Index a few thousand records before `target`; return whether there were any."""
        with self._lock:
            if self._position >= target:
                return False
            try:
                has_indexed = self._index_piece()
            except OSError as error:
                self._pause(error)
                return False
            self._paused = False
            return has_indexed and not self._drop_damaged()

    def _pause(self, error: OSError) -> None:
        if not self._paused:
            logger.warning(
                "%s: no room for more keys: %s. Records from log offset %d on are not indexed. "
                "%s, and the index continues",
                self._directory,
                error,
                self._position,
                remedy_of(error),
            )
        self._paused = True

    def _drop_damaged(self) -> bool:
        """Remove the first file with an unreadable page and all later ones; index again from there.

        The caller has the lock. Returns whether a file was removed.
        """
        position = next((i for i, file in enumerate(self._files) if file.damage), None)
        if position is None:
            return False
        logger.warning(
            "%s has pages that cannot be read (%s): it is removed and rebuilt from the log",
            self._files[position].path,
            self._files[position].damage,
        )
        for file in self._files[position:]:
            file.path.unlink(missing_ok=True)
        del self._files[position:]
        self._indexed = (0, 0)
        end = self._end_of(self._files[-1]) if self._files else 0
        self._position = min(max(end, self._log.min_offset), self._log.end)
        self.work.set()
        return True

    def check(self) -> None:
        """Remove files that cannot be read, because searches in them are incomplete.

        Raises:
            StoreError: A file was removed; try again.
        """
        with self._lock:
            if self._drop_damaged():
                raise StoreError(
                    f"{self._directory}: a file cannot be read and is being rebuilt: try again"
                )

    def _index_piece(self) -> bool:
        end = self._log.end
        file = self._log.find_file(max(self._position, self._log.min_offset))
        if file is None:
            return False
        start, stop_at = max(self._position - file.base, 0), min(end - file.base, file.size)
        reading = self._log.unreadable.reading()
        while True:
            count, pos, stop = kernels.collect_keys(
                file.data, start, stop_at, file.base + start, self._scratch, self._keys
            )
            if not reading.again(int(pos)):
                break
        self._put(self._keys[:count])
        if stop == scan.STOP_BLANK:
            pos = file.size
        elif stop == scan.STOP_INVALID:
            pos = self._after_damage(file, int(pos), stop_at)
        self._position = file.base + int(pos)
        return True

    def _after_damage(self, file: LogFile, pos: int, end: int) -> int:
        """Return the position of the next valid record after damage."""
        next_pos = int(find_record(file.data, pos + 1, end, file.base, self._scratch[0]))
        logger.warning(
            "%s at byte %d: not a record; the index continues at %s",
            file.path,
            pos,
            next_pos if next_pos >= 0 else "its end",
        )
        return next_pos if next_pos >= 0 else end

    def _put(self, keys: Rows) -> None:
        """Add keys; after an error the next piece begins after the last key that was added."""
        if not keys.size:
            return
        record, indexed = self._indexed
        done = int(np.count_nonzero(keys["phys_offset"][:indexed] == record))
        first = done
        try:
            while done < keys.size:
                if not self._files or self._files[-1].is_full:
                    self._roll()
                done += self._files[-1].put(keys[done:])
        except OSError:
            if done > first:
                self._position = last = int(keys[done - 1]["phys_offset"])
                self._indexed = (last, self._keys_indexed(last))
            raise
        self._indexed = (0, 0)

    def _roll(self) -> None:
        slots, items = self._config.index_slots_max, self._config.index_entries_max
        file = IndexFile(self._new_path(), slots, items, create=True)
        if self._files:
            self._unsynced.append(self._files[-1])
            file.inherit(self._files[-1])
        self._files.append(file)

    def _new_path(self) -> Path:
        """Return a name from the local time that sorts after all others."""
        now = self._clock.now_ms()
        time = datetime.datetime.fromtimestamp(now / 1_000).astimezone()
        name = f"{time.strftime(NAME_FORMAT)}{now % 1_000:03d}"
        if self._files and name <= self._files[-1].path.name:
            name = str(int(self._files[-1].path.name) + 1)
        return self._directory / name.zfill(NAME_DIGITS)

    # -- the readers --------------------------------------------------------------------------

    def indexed(self) -> tuple[list[IndexFile], int]:
        """Return the files, oldest first, and the log offset up to which they are complete."""
        with self._lock:
            return list(self._files), self._position

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return log offsets whose key has this hash, newest first. The caller compares keys.

        Raises:
            StoreError: An index file could not be read: try again.
        """
        key_hash = index_hash(f"{topic}#{key}")
        offsets: list[int] = []
        for file in reversed(self.indexed()[0]):
            if len(offsets) >= count_max:
                break
            offsets += file.find(key_hash, (begin_ms, end_ms), count_max - len(offsets))
        self.check()
        return list(dict.fromkeys(offsets))

    def remove_before(self, log_min: int) -> None:
        """Remove files whose records are all removed, except the newest file."""
        gone = []
        with self._lock:
            while len(self._files) > 1 and self._files[0].end_phys < log_min:
                gone.append(self._files.pop(0))
        for file in gone:  # outside the lock: it takes long
            file.path.unlink(missing_ok=True)
