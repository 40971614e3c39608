"""Reading a store's files where they are: local disk, or what fsspec knows by URL.

Nothing here writes, and nothing is opened before a worker reads: a `Root` is a text that travels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.errors import UsageError
from message_store.verify.files import map_file

Bytes = npt.NDArray[np.uint8]
FSSPEC = "fsspec is not installed, which reads {url}: pip install fsspec and what brings its scheme"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: its path below the root, its size in bytes."""

    path: str
    size: int

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Root:
    """A store directory: a path, or a URL such as s3://bucket/store."""

    url: str

    @property
    def is_local(self) -> bool:
        """Whether the operating system reads it."""
        return "://" not in self.url or self.url.startswith("file://")

    @property
    def _path(self) -> Path:
        return Path(self.url.removeprefix("file://"))

    def _remote(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError as error:
            raise UsageError(FSSPEC.format(url=self.url)) from error
        found: tuple[Any, str] = fsspec.core.url_to_fs(self.url)
        return found

    def files(self, below: str) -> list[Entry]:
        """Return the files of a directory by name, without those deeper; none if it is missing.

        Raises:
            OSError: It cannot be read.
        """
        if self.is_local:
            directory = self._path / below
            if not directory.is_dir():
                return []
            files = sorted(path for path in directory.iterdir() if path.is_file())
            return [Entry(f"{below}/{path.name}", path.stat().st_size) for path in files]
        system, top = self._remote()
        if not system.isdir(f"{top}/{below}"):
            return []
        found = [
            Entry(f"{below}/{item['name'].rstrip('/').rpartition('/')[2]}", int(item["size"]))
            for item in system.ls(f"{top}/{below}", detail=True)
            if item["type"] == "file"
        ]
        return sorted(found, key=lambda entry: entry.path)

    def folders(self, below: str) -> list[str]:
        """Return the names of the directories in a directory."""
        if self.is_local:
            directory = self._path / below
            if not directory.is_dir():
                return []
            return sorted(path.name for path in directory.iterdir() if path.is_dir())
        system, top = self._remote()
        if not system.isdir(f"{top}/{below}"):
            return []
        items = system.ls(f"{top}/{below}", detail=True)
        names = (i["name"].rstrip("/").rpartition("/")[2] for i in items if i["type"] != "file")
        return sorted(names)

    def read(self, path: str, start: int, end: int) -> Bytes:
        """Return the bytes start..end of a file; fewer where it ends before. Local: mapped.

        Raises:
            OSError: It cannot be read.
        """
        if self.is_local:
            return map_file(self._path / path)[start:end]
        system, top = self._remote()
        return np.frombuffer(system.cat_file(f"{top}/{path}", start=start, end=end), np.uint8)

    def text(self, path: str) -> str | None:
        """Return a small file's text, None if there is none."""
        below, _, name = path.rpartition("/")
        sizes = {entry.name: entry.size for entry in self.files(below)}
        if name not in sizes:
            return None
        return self.read(path, 0, sizes[name]).tobytes().decode("utf-8", "replace")


def queues_of(root: Root, below: str) -> Iterator[tuple[str, int, list[Entry]]]:
    """Yield (topic, queue id, files) of every queue below a directory."""
    for topic in root.folders(below):
        for queue in root.folders(f"{below}/{topic}"):
            if queue.isascii() and queue.isdigit():
                yield topic, int(queue), root.files(f"{below}/{topic}/{queue}")
