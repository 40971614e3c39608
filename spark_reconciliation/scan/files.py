"""File access to a store: local disk, or any fsspec URL.

The module never writes. Files are opened on the worker that reads them; a `Root` is sent to it as
text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np

from duemq_common.errors import UsageError
from duemq_common.existence import exists, is_directory
from message_store.verify.files import data_parts, map_file
from spark_reconciliation.arrays import Bytes

FSSPEC = (
    "fsspec is not installed; it is needed to read {url}: pip install fsspec and the package of "
    "its scheme"
)


ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")


def printable(name: str) -> str:
    """Return a file's name as text; bytes that are not text become escapes such as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _byte(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 16)])


@dataclass(frozen=True, slots=True)
class Entry:
    """File: path below the root, size in bytes."""

    path: str
    size: int

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Root:
    """Store directory: a path, or a URL such as s3://bucket/store."""

    url: str

    @property
    def is_local(self) -> bool:
        """Whether it is a local directory."""
        return "://" not in self.url or self.url.startswith("file://")

    def _path_of(self, path: str) -> Path:
        """Return the path of a name below the root, with the escapes of `printable` undone."""
        local_path = Path(self.url.removeprefix("file://")) / path
        if "\\x" in path and not exists(local_path):
            return Path(os.fsdecode(ESCAPED.sub(_byte, os.fsencode(local_path))))
        return local_path

    def _remote(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError as error:
            raise UsageError(FSSPEC.format(url=self.url)) from error
        try:
            location: tuple[object, str] = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # missing package, or unknown scheme
            raise UsageError(f"{self.url} cannot be read: {error}") from error
        return location

    def files(self, below: str) -> list[Entry]:
        """Return the files of a directory by name, without sub-directories; none if it is missing.

        Raises:
            OSError: It cannot be read.
        """
        if not self.is_local:
            entries = [Entry(f"{below}/{name}", size) for name, size in self._listed(below, True)]
            return sorted(entries, key=lambda entry: entry.path)
        directory = self._path_of(below)
        if not is_directory(directory):
            return []
        kept = []
        with os.scandir(directory) as listed:
            for item in sorted(listed, key=lambda item: item.name):
                try:
                    status = item.stat()
                except FileNotFoundError:  # retention has removed it
                    continue
                if S_ISREG(status.st_mode):
                    kept.append(Entry(f"{below}/{printable(item.name)}", status.st_size))
        return kept

    def folders(self, below: str) -> list[str]:
        """Return the names of the directories in a directory.

        Raises:
            OSError: It cannot be read.
        """
        if not self.is_local:
            return sorted(name for name, _ in self._listed(below, False))
        directory = self._path_of(below)
        if not is_directory(directory):
            return []
        return sorted(printable(path.name) for path in directory.iterdir() if is_directory(path))

    def _listed(self, below: str, are_files: bool) -> list[tuple[str, int]]:
        """Return (name, size) of the current files or directories."""
        system, top = self._remote()
        path = f"{top}/{below}".rstrip("/")
        with _as_os_errors(self.url):
            system.invalidate_cache()  # fsspec caches listings
            try:
                items = system.ls(path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        # S3 lists the directory itself as well.
        inside = [i for i in items if i["name"].strip("/") != path.strip("/")]
        return [
            (item["name"].rstrip("/").rpartition("/")[2], int(item["size"] or 0))
            for item in inside
            if (item["type"] == "file") == are_files
        ]

    def read(self, path: str, start: int, end: int) -> Bytes:
        """Return the bytes start..end of a file, fewer at its end; a local file is mapped.

        Raises:
            OSError: It cannot be read.
        """
        if self.is_local:
            return map_file(self._path_of(path))[start:end]
        if end <= start:
            return np.empty(0, np.uint8)
        system, top = self._remote()
        with _as_os_errors(self.url):
            return np.frombuffer(system.cat_file(f"{top}/{path}", start=start, end=end), np.uint8)

    def fill(self, path: str, out: Bytes) -> int:
        """Copy the first bytes of a file; return their number, which is smaller for a smaller file.

        A sector of a local disk that cannot be read is zeros, as in `read`.

        Raises:
            OSError: It cannot be read.
        """
        if self.is_local:
            with suppress(OSError), self._path_of(path).open("rb", buffering=0) as file:
                return int(file.readinto(out.data) or 0)
        data = self.read(path, 0, out.size)
        out[: data.size] = data
        return int(data.size)

    def data_parts(self, entry: Entry, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of the parts of a file that its disk has stored, from `start` on.

        The rest consists of zeros without blocks on the disk. Of a remote file, all is one part.

        Raises:
            OSError: It cannot be opened, or its disk does not know its blocks.
        """
        if self.is_local:
            yield from data_parts(self._path_of(entry.path), start)
        elif start < entry.size:
            yield start, entry.size

    def data_end(self, entry: Entry, start: int) -> int:
        """Return the position after the last byte of a file that its disk has stored, from `start`.

        Of a remote file, the size.
        """
        end = start
        with suppress(OSError):
            for _, stored in self.data_parts(entry, start):
                end = stored
        return min(end, entry.size)

    def small_file(self, path: str) -> bytes | None:
        """Return a small file's bytes, None if there is none.

        Raises:
            OSError: It cannot be read.
        """
        below, _, name = path.rpartition("/")
        sizes = {entry.name: entry.size for entry in self.files(below)}
        return self.read(path, 0, sizes[name]).tobytes() if name in sizes else None


@contextmanager
def _as_os_errors(url: str) -> Iterator[None]:
    """Convert the errors of a file system's client to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{url}: {type(error).__name__}: {error}") from error


def queues_of(root: Root, below: str) -> Iterator[tuple[str, int, list[Entry]]]:
    """Yield (topic, queue id, files) of every queue below a directory."""
    for topic in root.folders(below):
        for queue in root.folders(f"{below}/{topic}"):
            if queue.isascii() and queue.isdigit():
                yield topic, int(queue), root.files(f"{below}/{topic}/{queue}")
