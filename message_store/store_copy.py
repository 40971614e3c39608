"""Consistent copy of a store directory, also while a broker runs on it.

The commit log is the source of truth, and is only appended to. Files that say how far something has
come are copied before the end of the log, so that no position in the copy is after its log:

    1. sealed files of the log    before retention can remove one that a later step needs
    2. config/, sums/, checkpoint, abort, epochs, identity
    3. consume queues, then the index without its newest file
    4. the rest of the log        a file that was full only after it was copied is copied again

The newest file of the log is the last one with a record: an Apache broker creates files before it
needs them.

Of a running store, files that change in place are left out: the newest index file, and wheel,
log and checkpoint of plugins. A start rebuilds them from the log. `abort` is copied from a running
store; its inode shows the start that the directory is a copy (`recovery.abort_file`).

With links, sealed files of the log are hard links: the copy takes seconds and little room. Such a
copy shares these files with the store; no broker starts on it (`refuse_linked`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from msgspec import Struct

from duemq_common.directories import sync_directory
from duemq_common.errors import StoreError, UsageError
from duemq_common.existence import exists, is_directory
from message_store.layout import BLANK_BYTES

LOG, LINKED_FILE = "commitlog", "linked"
NOT_COPIED: Final = ("lock", LINKED_FILE, "duemq.ledger.sqlite*", "*.tmp", "*.old")
CHANGED_IN_PLACE: Final = (
    "timerwheel",
    "timerlog",
    "timerlog/*",
    "config/duemq.timers.json*",
    "config/timercheck*",
    "config/timermetrics*",
    "config/sums/duemq.timers.json*",
    "config/sums/timercheck*",
    "config/sums/timermetrics*",
)
"""Files that are left out of the copy of a running store."""
BLOCK_BYTES: Final = 1 << 16
ZEROS: Final = bytes(BLOCK_BYTES)
LATER: Final = ("consumequeue", "index", LOG)


class Copied(Struct):
    """Result of a copy.

    Attributes:
        files, bytes: Number and size of the copied files.
        linked: Number of files that are hard links.
        was_running: Whether a broker ran on the store, or did not stop cleanly.
    """

    files: int = 0
    bytes: int = 0
    linked: int = 0
    was_running: bool = False


def copy_store(
    source: Path,
    target: Path,
    *,
    commitlog: Path | None = None,
    links: bool = False,
    left_out: Sequence[str] = (),
) -> Copied:
    """Copy a store; return what was copied, all of it synced.

    Args:
        commitlog: Directory of the log if it is not `source`/commitlog.
        links: Whether sealed files of the log become hard links.
        left_out: Patterns of further files that are not copied, relative to `source`.
    Raises:
        UsageError: `source` is not a store, or `target` is not an empty directory outside of it.
        OSError: A file cannot be read or written; `target` is incomplete.
    """
    commitlog = commitlog or source / LOG
    if not is_directory(commitlog):
        raise UsageError(f"{source} is not a store: it has no directory {LOG}")
    if exists(target) and (not is_directory(target) or any(target.iterdir())):
        raise UsageError(f"{target} is not empty: name a new directory")
    if target.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{target} is below the store: name a directory outside of it")
    was_running = exists(source / "abort")
    left_out = (*NOT_COPIED, *left_out, *(CHANGED_IN_PLACE if was_running else ()))
    copy = StoreCopy(source, target, Copied(was_running=was_running), left_out)
    copy.sealed_log(commitlog, links=links)
    for name in sorted(os.listdir(source)):
        if name not in LATER:
            copy.tree(source / name)
    copy.tree(source / "consumequeue")
    copy.index(source / "index")
    copy.rest_of_log(commitlog)
    if copy.result.linked:
        (target / LINKED_FILE).touch()
    for directory, _, _ in os.walk(target):
        sync_directory(Path(directory))
    return copy.result


def refuse_linked(root: Path) -> None:
    """Refuse a copy that shares files with the store it was made of.

    Raises:
        StoreError: It is one.
    """
    if exists(root / LINKED_FILE):
        raise StoreError(
            f"{root} is a copy with hard links: its files are also those of another store. Copy "
            f"it with `duemq store copy {root} NEW`, and start the broker on the new one"
        )


class StoreCopy:
    """One copy in progress.

    Args:
        left_out: Patterns of files that are not copied, relative to `source`.
    """

    def __init__(
        self, source: Path, target: Path, result: Copied, left_out: Sequence[str] = NOT_COPIED
    ) -> None:
        self.source, self.target, self.result = source, target, result
        self._left_out = left_out

    def sealed_log(self, directory: Path, *, links: bool) -> None:
        """Copy the files of the log that no longer grow, in order."""
        for name in _log_files(directory)[:-1]:
            self.file(directory / name, self.target / LOG / name, link=links)

    def rest_of_log(self, directory: Path) -> None:
        """Copy the files of the log that the copy lacks, in order, up to its end.

        While the newest file was copied, messages may have been stored after the bytes that were
        read already. If the log has a newer file now, these are not its end: the file is copied
        again.
        """
        newest = ""
        while (names := _log_files(directory))[-1:] > [newest]:
            for name in names:
                if name == newest or not exists(self.target / LOG / name):
                    self.file(directory / name, self.target / LOG / name)
            newest = names[-1]

    def index(self, directory: Path) -> None:
        """Copy the index; of a running store, without its newest file."""
        names = sorted(os.listdir(directory)) if is_directory(directory) else []
        for name in names[:-1] if self.result.was_running else names:
            self.file(directory / name, self.target / "index" / name)

    def tree(self, path: Path) -> None:
        """Copy a file, or a directory with all files below it."""
        for file in _files(path):
            name = file.relative_to(self.source).as_posix()
            if not any(fnmatch(name, pattern) for pattern in self._left_out):
                self.file(file, self.target / name)

    def file(self, source: Path, target: Path, *, link: bool = False) -> None:
        """Copy a file; skip it if the broker has removed it meanwhile."""
        target.parent.mkdir(parents=True, exist_ok=True)
        former_bytes = target.stat().st_size if exists(target) else None
        try:
            if link:
                os.link(source, target)
                self.result.linked += 1
            else:
                copy_file(source, target)
                with target.open("rb") as copied:
                    os.fsync(copied.fileno())
        except FileNotFoundError:
            target.unlink(missing_ok=True)
            return
        self.result.files += former_bytes is None
        self.result.bytes += target.stat().st_size - (former_bytes or 0)


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copy a file with its times and mode; blocks of zeros are holes in the copy.

    Files of the log and of the index have their full size from the start, of which most is a hole.
    Holes are found by their zeros: not every file system reports those of open files.
    """
    with open(source, "rb", buffering=0) as original, open(target, "wb") as copy:
        while block := original.read(BLOCK_BYTES):
            if block == ZEROS[: len(block)]:
                copy.seek(len(block), os.SEEK_CUR)
            else:
                copy.write(block)
        copy.truncate()
    shutil.copystat(source, target)


def _log_files(directory: Path) -> list[str]:
    """Return the names of the log's files up to the newest one with a record, in order."""
    names = [name for name in sorted(os.listdir(directory)) if name.isdigit()]
    while len(names) > 1 and not _has_record(directory / names[-1]):
        names.pop()
    return names


def _has_record(path: Path) -> bool:
    """Return whether a file of the log begins with a record or a blank record."""
    try:
        with path.open("rb") as file:
            return any(file.read(BLANK_BYTES))
    except FileNotFoundError:
        return True  # retention has removed it, so it had records


def _files(path: Path) -> Iterator[Path]:
    """Yield a file, or the files below a directory, by name."""
    if not is_directory(path):
        yield path
        return
    for directory, names, files in os.walk(path):
        names.sort()
        yield from (Path(directory) / name for name in sorted(files))
