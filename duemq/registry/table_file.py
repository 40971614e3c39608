"""Table in one of Apache's JSON files, with a second file for changes since its last write.

    topics.json            all rows of one version
    topics.json.changes    one line per later change: CRC, version before, version after, rows

A table of at most `WHOLE_BYTES_MAX` bytes is rewritten at each change, so that an Apache broker
that opens the store after a crash finds every row. For a larger table, a change appends and syncs
one line. The periodic job and a stop rewrite the file and delete the lines, and so does a change
once the lines are as long as the file. Lines therefore remain only after a crash. The next start
applies the lines that continue the file's version. If another program wrote the file after them,
the lines only add missing rows.

A deletion always rewrites the file, so that no line can restore a deleted row: before the file is
rewritten, a line with its new version and no rows is added. A start that finds this version in the
file ignores the lines up to that one, which a kill has left.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from duemq.registry.config_file import CONFIG_BYTES_MAX, ConfigFile, JsonObject
from duemq_common import json_dialect
from duemq_common.data_version import DataVersion
from duemq_common.directories import sync_directory
from duemq_common.existence import exists
from duemq_common.json_dialect import Written

log = logging.getLogger(__name__)
WHOLE_BYTES_MAX: Final = 256 << 10  # about 800 topics, rewritten in some ms
CHANGES_BYTES_MIN: Final = 1 << 20  # limit of the lines, or the size of the file if larger
ROW_DEPTH: Final = 2  # nesting depth of a row in the file
CRC_CHARS: Final = 8
T = TypeVar("T")


class Row(Protocol):
    """Immutable row of a table."""

    @property
    def name(self) -> str: ...
    def to_json(self) -> JsonObject: ...


class TableChange(Struct, frozen=True):
    """One line: the rows changed from one version to the next."""

    base: DataVersion
    version: DataVersion
    rows: JsonObject


class TableFile:
    """Files of one table. The methods block: call them in a thread.

    Args:
        file: File of the whole table.
        member: Name of the JSON member that contains the rows.
    Attributes:
        path: Path of the whole table's file.
    """

    def __init__(self, file: ConfigFile, member: str) -> None:
        self._file, self.member = file, member
        self.path = file.path
        self.changes_path = file.path.with_name(file.path.name + ".changes")
        self._lock = threading.Lock()
        self._stored: DataVersion | None = None  # on disk; None: the next change rewrites the file
        self._descriptor = -1
        self._changes_bytes = self._whole_bytes = 0
        self._texts: dict[str, tuple[Row, Written]] = {}

    @property
    def needs_rewrite(self) -> bool:
        """Whether the next change must rewrite the whole table."""
        if self._stored is None or self._whole_bytes <= WHOLE_BYTES_MAX:
            return True
        return self._changes_bytes >= max(CHANGES_BYTES_MIN, self._whole_bytes)

    @property
    def has_changes(self) -> bool:
        """Whether a file of changes exists."""
        return exists(self.changes_path)

    def load(self, decode: Callable[[dict[str, object]], T]) -> T | None:
        """Return the decoded table with its changes applied; None without a file.

        Raises:
            CorruptStore: Neither the file nor its backup can be used.
        """
        content = self._file.load(lambda data: decode(self._changed(data)))
        if self.has_changes:
            self._stored = None
        return content

    def _changed(self, data: dict[str, object]) -> dict[str, object]:
        self._stored = version = DataVersion.from_json(data.get("dataVersion"))
        changes = list(read_changes(self.changes_path))
        numbers = (n for n, each in enumerate(changes, start=1) if each.version == version)
        changes = changes[max(numbers, default=0) :]
        if not changes:
            return data
        table = data.get(self.member) or {}
        if not isinstance(table, Mapping):
            raise ValueError(f"{self.member} is not an object")
        rows, unrelated = dict(table), 0
        for change in changes:
            if change.base == version:
                rows |= change.rows
                version = change.version
            else:
                unrelated += bool(change.rows)
                rows = {**change.rows, **rows}
        if unrelated:
            log.warning(
                "%s was written by another program after %d changes: of these, only missing rows "
                "were added",
                self.path,
                unrelated,
            )
        return {**data, "dataVersion": version.to_json(), self.member: rows}

    def append(self, rows: Mapping[str, Row], version: DataVersion) -> None:
        """Append and sync the rows changed in `version`.

        Raises:
            OSError: The write failed; nothing has changed.
        """
        with self._lock:
            assert self._stored is not None
            line = _encode(
                TableChange(
                    self._stored, version, {name: row.to_json() for name, row in rows.items()}
                )
            )
            try:
                self.write_line(line)
            except OSError:
                self._stored = None
                self._truncate_line()
                raise
            self._changes_bytes += len(line)
            self._stored = version

    def write_line(self, line: bytes, *, truncates: bool = True) -> None:
        """Append and sync a line.

        Args:
            truncates: Whether lines of a former run are removed first.
        """
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            flags |= os.O_TRUNC if truncates else 0
            self._descriptor = os.open(self.changes_path, flags, 0o644)
            self._changes_bytes = os.fstat(self._descriptor).st_size
            sync_directory(self.changes_path.parent)
        left = memoryview(line)
        while left:
            left = left[os.write(self._descriptor, left) :]
        os.fdatasync(self._descriptor)

    def _truncate_line(self) -> None:
        """Remove an incomplete line; if that fails, the next start detects it by its CRC."""
        if self._descriptor >= 0:
            try:
                os.ftruncate(self._descriptor, self._changes_bytes)
            except OSError as error:
                log.warning("%s ends with an incomplete line: %s", self.changes_path, error)

    def write(self, members: JsonObject, table: JsonObject, version: DataVersion) -> None:
        """Write the whole table and delete the changes.

        Args:
            members: Other members of the file, written before the rows.
            table: Rows by name; must not change during the call.
        Raises:
            OSError: The write failed; nothing has changed.
        """
        with self._lock:
            rows = self._texts_of(table)
            if self.has_changes:
                self._supersede_changes(version)
            self._file.write({"dataVersion": version.to_json(), **members, self.member: rows})
            self._stored = version
            self._whole_bytes = self.path.stat().st_size
            self._delete_changes()

    def _supersede_changes(self, version: DataVersion) -> None:
        """Append the line by which a start ignores all others if the file has this version."""
        try:
            self.write_line(_encode(TableChange(version, version, {})), truncates=False)
        except OSError as error:  # only a kill before they are deleted can restore a row
            log.warning("%s remains valid until it is deleted: %s", self.changes_path, error)
            self._truncate_line()

    def _delete_changes(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._changes_bytes = 0
        self.changes_path.unlink(missing_ok=True)

    def _texts_of(self, table: Mapping[str, Row]) -> dict[str, Written]:
        """Return the encoded rows; unchanged rows come from the cache."""
        texts, self._texts = self._texts, {}
        for name, row in table.items():
            was, text = texts.get(name, (None, None))
            if was is not row or text is None:
                text = json_dialect.written(row.to_json(), ROW_DEPTH)
            self._texts[name] = row, text
        return {name: text for name, (_, text) in self._texts.items()}


def _encode(change: TableChange) -> bytes:
    text = json_dialect.dumps_compact(
        {
            "base": change.base.to_json(),
            "version": change.version.to_json(),
            "rows": change.rows,
        }
    ).encode()
    return f"{zlib.crc32(text):0{CRC_CHARS}x} ".encode() + text + b"\n"


def read_changes(path: Path) -> Iterator[TableChange]:
    """Yield the changes in a file up to the first damaged line."""
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            log.warning("%s is longer than %d bytes: ignored", path, CONFIG_BYTES_MAX)
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
            log.warning("%s line %d is damaged: this and later lines are ignored", path, number)
            return
        yield change


def _decode(line: bytes) -> TableChange | None:
    crc, _, text = line.partition(b" ")
    if crc != f"{zlib.crc32(text):0{CRC_CHARS}x}".encode():
        return None
    try:
        value = json_dialect.loads(text.decode())
        rows = value["rows"]
        base, version = map(DataVersion.from_json, (value["base"], value["version"]))
    except (ValueError, TypeError, KeyError):
        return None
    return TableChange(base, version, rows) if isinstance(rows, dict) else None
