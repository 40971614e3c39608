"""Bytes of a log on the disk, to be changed by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.layout import RECORD_HEAD


class Log:
    """The files of a commit log, all of one size, open for writing until `close`."""

    def __init__(self, root: Path, file_bytes: int) -> None:
        self.folder, self.file_bytes = root / "commitlog", file_bytes
        self.files: dict[int, npt.NDArray[np.uint8]] = {}

    def at(self, offset: int) -> npt.NDArray[np.uint8]:
        """Return the bytes from a log offset to the end of its file."""
        start = offset % self.file_bytes
        base = offset - start
        if base not in self.files:
            self.files[base] = np.memmap(self.folder / f"{base:020d}", np.uint8, mode="r+")
        return self.files[base][start:]

    def head(self, record: int) -> npt.NDArray[Any]:
        """Return the head of a record, to read and write its fields."""
        return self.at(record)[: RECORD_HEAD.itemsize].view(RECORD_HEAD)

    def flip(self, offset: int) -> None:
        """Change one bit of a byte."""
        self.at(offset)[0] ^= 1

    def find(self, text: bytes, record: int) -> int:
        """Return the position of a text in a record."""
        return record + self.at(record)[: int(self.head(record)["total_size"][0])].tobytes().index(
            text
        )

    def close(self) -> None:
        """Write the changes."""
        self.files.clear()
