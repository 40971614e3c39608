"""One table in one JSON file in Apache's dialect: read with its `.bak`, written whole.

table changes --> value (an immutable snapshot) --> text --> file
                                                 in a thread, newest snapshot wins
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from message_store import config_sums, json_dialect
from message_store.errors import CorruptStore

log = logging.getLogger(__name__)
CONFIG_BYTES_MAX = 256 << 20
JsonObject = Mapping[str, Any]
"""A decoded JSON object."""
T = TypeVar("T")


class ConfigFile:
    """One file of a store's `config` directory. Source: ConfigManager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._last_serial = 0
        self._written_serial = 0

    def load(self, decode: Callable[[dict[str, Any]], T]) -> T | None:
        """Return `decode` of the file's object, of its backup's if that fails.

        Args:
            decode: Raises ValueError for an invalid object.
        Returns:
            None when neither file nor backup exists.
        Raises:
            CorruptStore: There is a file, but neither it nor its backup can be used.
        """
        backup = json_dialect.backup_path(self.path)
        failure: ValueError | None = None
        for candidate in (self.path, backup):
            try:
                value = _read(candidate)
                found = None if value is None else decode(value)
            except ValueError as error:
                failure = failure or error
                continue
            if found is not None:
                if candidate is backup:
                    log.warning("%s: %s; %s is used", self.path, failure or "missing", backup.name)
                return found
        if failure is None:
            return None
        remedy = (
            "Repair it or restore it from a copy (its .bak does not help). Deleting "
            f"{self.path.name} and {backup.name} starts with the defaults"
        )
        raise CorruptStore(self.path, 0, str(failure), remedy) from failure

    def write(self, value: JsonObject) -> None:
        """Write `value` now.

        Raises:
            OSError: The disk refused it; the old file is as it was.
        """
        self._write(self._take_serial(), value)

    async def save(self, value: JsonObject) -> None:
        """Write `value` in a thread. `value` must not change any more.

        Raises:
            OSError: The disk refused it; the old file is as it was.
        """
        await asyncio.to_thread(self._write, self._take_serial(), value)

    def _take_serial(self) -> int:
        self._last_serial += 1
        return self._last_serial

    def _write(self, serial: int, value: JsonObject) -> None:
        with self._lock:
            if serial < self._written_serial:
                return  # a newer snapshot is on the disk already
            json_dialect.write_config(self.path, json_dialect.dumps(value))
            self._written_serial = serial


def _read(path: Path) -> dict[str, Any] | None:
    """Return the object in a file, None if there is no file.

    Raises:
        ValueError: What is wrong with it.
    """
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ValueError(f"longer than {CONFIG_BYTES_MAX} bytes")
        text = config_sums.checked(path, path.read_bytes()).decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"the disk cannot read it: {error.strerror}") from error
    if not text.strip():
        raise ValueError("the file is empty")
    value = json_dialect.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"holds {type(value).__name__}, not an object")
    return value


class Saved(ABC):
    """A table in memory that is written to a configuration file when it has changed.

    Subclasses set `_dirty` at each change and return the content of the file.
    """

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._dirty = False

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the file's content."""

    def persist(self) -> None:
        """Write the file if it does not hold the table yet.

        Raises:
            OSError: The disk refused it.
        """
        if self._dirty:
            self._file.write(self.to_json())
            self._dirty = False

    async def save(self) -> None:
        """As `persist`, in a thread: for the job that runs while the broker serves.

        Raises:
            OSError: The disk refused it.
        """
        if self._dirty:
            self._dirty = False
            try:
                await self._file.save(self.to_json())
            except OSError:
                self._dirty = True
                raise
