"""A table of rows kept as one JSON file of Apache's, and its latest changes in a second file.

    topics.json            every row as of one version; written whole, seldom
    topics.json.changes    one line for each change since: CRC, version before, version after, rows

A table of at most `WHOLE_BYTES_MAX` bytes is written whole at each change, so that an Apache broker
that opens the store after a kill finds every row. In a larger table a change costs one appended and
synced line; the periodic job, a stop, and lines as long as the file write it whole, and the lines
go. Only a process that was killed leaves lines behind. The next start applies those that continue
the file's version. If something else wrote the file in between, lines only add rows it lacks.

Lines hold no deletions: those are written whole, so that no line brings a deleted row back.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from duemq.registry.config_file import CONFIG_BYTES_MAX, ConfigFile, JsonObject
from duemq.registry.data_version import DataVersion
from message_store import json_dialect
from message_store.json_dialect import Written

log = logging.getLogger(__name__)
WHOLE_BYTES_MAX: Final = 256 << 10  # about 800 topics; two writes and syncs of that take some ms
CHANGES_BYTES_MIN: Final = 1 << 20  # lines are kept up to this, or up to the size of the file
ROW_DEPTH: Final = 2  # objects around a row in the file
CRC_CHARS: Final = 8
T = TypeVar("T")


class Row(Protocol):
    """One row; it never changes."""

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Change:
    """One line: the rows that led from one version to the next."""

    base: DataVersion
    version: DataVersion
    rows: JsonObject


class TableFile:
    """One table's file and its changes. Its methods block: call them in a thread.

    Args:
        file: the whole table.
        member: name of the member that holds the rows.
    """

    def __init__(self, file: ConfigFile, member: str) -> None:
        self._file, self._member = file, member
        self.path = file.path
        self.changes_path = file.path.with_name(file.path.name + ".changes")
        self._lock = threading.Lock()
        self._stored: DataVersion | None = None  # on the disk; None: write the whole file next
        self._descriptor = -1
        self._changes_bytes = self._whole_bytes = 0
        self._texts: dict[str, tuple[Row, Written]] = {}

    @property
    def wants_whole(self) -> bool:
        """Whether the next change must be written with the whole table."""
        if self._stored is None or self._whole_bytes <= WHOLE_BYTES_MAX:
            return True
        return self._changes_bytes >= max(CHANGES_BYTES_MIN, self._whole_bytes)

    @property
    def has_changes(self) -> bool:
        """Whether a file of changes exists."""
        return self.changes_path.exists()

    def load(self, decode: Callable[[dict[str, Any]], T]) -> T | None:
        """Return `decode` of the file's object, its changes applied; None without a file.

        Raises:
            CorruptStore: There is a file, but neither it nor its backup can be used.
        """
        found = self._file.load(lambda data: decode(self._changed(data)))
        if self.has_changes:
            self._stored = None
        return found

    def _changed(self, data: dict[str, Any]) -> dict[str, Any]:
        self._stored = version = DataVersion.from_json(data.get("dataVersion"))
        changes = list(read_changes(self.changes_path))
        if not changes or changes[-1].version == version:
            return data
        found = data.get(self._member) or {}
        if not isinstance(found, Mapping):
            raise ValueError(f"{self._member} is not an object")
        rows, strange = dict(found), 0
        for change in changes:
            if change.base == version:
                rows |= change.rows
                version = change.version
            else:
                strange += 1
                rows = {**change.rows, **rows}
        if strange:
            log.warning(
                "%s was written by something else after %d of its changes: of these, only rows "
                "that it lacks were added",
                self.path, strange,
            )  # fmt: skip
        return {**data, "dataVersion": version.to_json(), self._member: rows}

    def append(self, rows: Mapping[str, Row], version: DataVersion) -> None:
        """Append and sync the rows that lead to `version`.

        Raises:
            OSError: The disk refused it; nothing has changed.
        """
        with self._lock:
            assert self._stored is not None
            line = _encode(
                Change(self._stored, version, {name: row.to_json() for name, row in rows.items()})
            )
            try:
                self.write_line(line)
            except OSError:
                self._stored = None
                self._cut()
                raise
            self._changes_bytes += len(line)
            self._stored = version

    def write_line(self, line: bytes) -> None:
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.changes_path, flags, 0o644)
            self._changes_bytes = 0
            _sync_directory(self.changes_path.parent)
        left = memoryview(line)
        while left:
            left = left[os.write(self._descriptor, left) :]
        os.fdatasync(self._descriptor)

    def _cut(self) -> None:
        """Remove half a line; if that fails too, the next start finds it by its CRC."""
        if self._descriptor >= 0:
            try:
                os.ftruncate(self._descriptor, self._changes_bytes)
            except OSError as error:
                log.warning("%s ends with half a line: %s", self.changes_path, error)

    def write(self, members: JsonObject, table: JsonObject, version: DataVersion) -> None:
        """Write the whole table and forget the changes.

        Args:
            members: the file's other members, which come before the rows.
            table: name to `Row`; must not change while this runs.
        Raises:
            OSError: The disk refused it; nothing has changed.
        """
        with self._lock:
            rows = self._texts_of(table)
            self._file.write({"dataVersion": version.to_json(), **members, self._member: rows})
            self._stored = version
            self._whole_bytes = self.path.stat().st_size
            self._forget_changes()

    def _forget_changes(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._changes_bytes = 0
        self.changes_path.unlink(missing_ok=True)

    def _texts_of(self, table: Mapping[str, Row]) -> dict[str, Written]:
        """Return the rows as text; unchanged ones are not encoded again."""
        known, self._texts = self._texts, {}
        for name, row in table.items():
            was, text = known.get(name, (None, None))
            if was is not row or text is None:
                text = json_dialect.written(row.to_json(), ROW_DEPTH)
            self._texts[name] = row, text
        return {name: text for name, (_, text) in self._texts.items()}


def _encode(change: Change) -> bytes:
    text = json_dialect.dumps_compact(
        {
            "base": change.base.to_json(),
            "version": change.version.to_json(),
            "rows": change.rows,
        }
    ).encode()
    return f"{zlib.crc32(text):0{CRC_CHARS}x} ".encode() + text + b"\n"


def read_changes(path: Path) -> Iterator[Change]:
    """Yield the changes in a file up to the first line that is not whole."""
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            log.warning("%s is longer than %d bytes: not read", path, CONFIG_BYTES_MAX)
            return
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s cannot be read, its changes are lost: %s", path, error.strerror)
        return
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        change = _decode(line)
        if change is None:
            log.warning("%s line %d is damaged: it and what follows is not read", path, number)
            return
        yield change


def _decode(line: bytes) -> Change | None:
    crc, _, text = line.partition(b" ")
    if crc != f"{zlib.crc32(text):0{CRC_CHARS}x}".encode():
        return None
    try:
        value = json_dialect.loads(text.decode())
        rows = value["rows"]
        base, version = map(DataVersion.from_json, (value["base"], value["version"]))
    except (ValueError, TypeError, KeyError):
        return None
    return Change(base, version, rows) if isinstance(rows, dict) else None


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
