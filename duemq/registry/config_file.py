"""JSON configuration file in Apache's dialect, with its `.bak` backup.

table changes --> value (an immutable snapshot) --> text --> file
                                                 in a thread; the newest snapshot wins
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from duemq_common import config_sums, json_dialect
from duemq_common.errors import CorruptStore
from duemq_common.existence import exists

log = logging.getLogger(__name__)
CONFIG_BYTES_MAX = 256 << 20
JsonObject = Mapping[str, Any]
"""A decoded JSON object."""
T = TypeVar("T")


def sound_rows(
    table: Mapping[str, object], read: Callable[[object, str], T], before: Mapping[str, T]
) -> dict[str, T]:
    """Return the rows of a master's table; a malformed row keeps its value, and stops no other.

    Args:
        table: JSON of the rows by name.
        read: Decodes a row; raises ValueError if it is malformed.
        before: Rows of the table so far.
    """
    rows = {str(name): row for name, row in before.items() if name in table}
    faults: list[str] = []
    for name, value in table.items():
        try:
            rows[str(name)] = read(value, str(name))
        except ValueError as error:
            faults.append(str(error))
    if faults:
        log.warning("%d rows of the master's table are not copied: %s", len(faults), faults[0])
    return rows


class ConfigFile:
    """File in a store's `config` directory. Source: ConfigManager"""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._last_serial = 0
        self._written_serial = 0

    def load(self, decode: Callable[[dict[str, object]], T]) -> T | None:
        """Return the decoded content of the file or, if that is invalid, of its backup.

        Args:
            decode: Decodes the object; raises ValueError if it is invalid.
        Returns:
            None if neither file nor backup exists.
        Raises:
            CorruptStore: Neither the file nor its backup can be used.
        """
        backup = json_dialect.backup_path(self.path)
        failure: ValueError | None = None
        for candidate in (self.path, backup):
            try:
                value = _read(candidate)
                content = None if value is None else decode(value)
            except ValueError as error:
                failure = failure or error
                continue
            if content is not None:
                if candidate is backup:
                    log.warning("%s: %s; %s is used", self.path, failure or "missing", backup.name)
                return content
        if failure is None:
            return None
        state = "invalid too" if exists(backup) else "missing"
        remedy = (
            f"Repair it or restore it from a copy ({backup.name} is {state}). To start with the "
            f"defaults, delete {self.path.name} and {backup.name}"
        )
        raise CorruptStore(self.path, 0, str(failure), remedy) from failure

    def write(self, value: JsonObject) -> None:
        """Write `value`.

        Raises:
            OSError: The write failed; the old file is unchanged.
        """
        self._write(self._take_serial(), value)

    async def save(self, value: JsonObject) -> None:
        """Write `value`, which must not change, in a thread.

        Raises:
            OSError: The write failed; the old file is unchanged.
        """
        await asyncio.to_thread(self._write, self._take_serial(), value)

    def _take_serial(self) -> int:
        self._last_serial += 1
        return self._last_serial

    def _write(self, serial: int, value: JsonObject) -> None:
        with self._lock:
            if serial < self._written_serial:
                return  # a newer snapshot is already on disk
            json_dialect.write_config(self.path, json_dialect.dumps(value))
            self._written_serial = serial


def _read(path: Path) -> dict[str, object] | None:
    """Return the object in a file; None if the file does not exist.

    Raises:
        ValueError: The file cannot be read or parsed.
    """
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise ValueError(f"longer than {CONFIG_BYTES_MAX} bytes")
        text = config_sums.checked(path, path.read_bytes()).decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    if not text.strip():
        raise ValueError("the file is empty")
    value = json_dialect.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"contains {type(value).__name__}, not an object")
    return value


class SavedTable(ABC):
    """Table in memory that is written to a configuration file after changes.

    Subclasses set `_dirty` at each change.
    """

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._dirty = False

    @abstractmethod
    def to_json(self) -> dict[str, object]:
        """Return the content of the file."""

    def persist(self) -> None:
        """Write the file if the table has changed.

        Raises:
            OSError: The write failed.
        """
        if self._dirty:
            self._file.write(self.to_json())
            self._dirty = False

    async def save(self) -> None:
        """Do the same as `persist` in a thread, for the periodic job.

        Raises:
            OSError: The write failed.
        """
        if self._dirty:
            self._dirty = False
            try:
                await self._file.save(self.to_json())
            except OSError:
                self._dirty = True
                raise
