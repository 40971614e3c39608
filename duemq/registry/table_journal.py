"""Table journal: topics and consumer groups as records of the log, so that a failover keeps them.

    DUEMQ_TABLES, queue 0 (topics)   snapshot | change  change  change | snapshot | change ...
                  queue 1 (groups)      ^--------------- base of each record ---------'

The tables are files below config/, which replicas copy only periodically. A master with replicas
therefore also appends each change to the log: the changed rows, the deleted names, and the version
of the table after the change. The creation of a topic precedes its first message. A snapshot is the
whole table in parts of bounded size; changes between its parts are newer than the snapshot.

At startup the version of the file is compared with that of the last record, by state version (the
master's epoch) and counter, which never decrease within one log:

    file not older   The file is used. The log may have fewer changes because the file was copied
                     from the former master, or because the log was truncated or lost its end in a
                     power failure. Changes missing in the log were accepted; the next snapshot
                     adds them.
    file older       The file was written before the last changes, or another master has replaced
                     the end of this log in a newer epoch, so that the file may contain changes
                     that no log has. The table is rebuilt from the log alone: the snapshot at
                     `base`, and the changes after it.
    no snapshot      The snapshot was removed by retention or is damaged. Changes newer than the
                     file are applied to the file's table, searched backwards from the end of the
                     queue.

Without a controller, state versions are 0. The counter of a former master can then be higher than
that of its successor, until the replica connects and copies the table.

`base` is -1 while parts of the table are missing in the log; the next snapshot sets it. A master
also appends a snapshot when retention has removed the last one, and after many changes, to bound
what the next start reads. Records not written by a broker are skipped with one log line.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from duemq.registry.config_file import JsonObject
from duemq.registry.journal_log import StoreLog, TableKind
from duemq.registry.table_file import Row
from duemq_common import json_dialect
from duemq_common.codes import ResponseCode
from duemq_common.data_version import DataVersion, integer
from duemq_common.errors import RecordUnreadable, RequestError

log = logging.getLogger(__name__)
PART_BYTES: Final = 64 << 10
CHANGES_MIN: Final = 1_000
"""Minimum number of records between two snapshots; an eighth of the rows in a large table."""
SKIPPED_MAX: Final = 10_000
"""Maximum number of malformed records that a start skips; earlier records are not read."""
SHOWN_CHARACTERS, SHOWN_MAX = 100, 3  # malformed records in one log line


R = TypeVar("R", bound=Row)


@dataclass(frozen=True, slots=True)
class JournalRecord(Generic[R]):
    """One record.

    Attributes:
        version: Version of the table after the change; in a snapshot, the newest so far.
        base: Queue offset of the snapshot that this record continues; -1: none.
        rows: Changed rows by name; None: the row was deleted.
        part: Number of this part of a snapshot; -1: a change.
        is_last: Whether this is the last part of a snapshot.
    """

    version: DataVersion
    base: int
    rows: Mapping[str, R | None]
    part: int = -1
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Replayed(Generic[R]):
    """Changes in the journal that the file does not have.

    Attributes:
        version: Version of the table after the changes.
        rows: Changed rows by name; None: the row was deleted.
        is_whole: Whether `rows` is the complete table.
    """

    version: DataVersion
    rows: Mapping[str, R | None]
    is_whole: bool

    def applied_to(self, table: Mapping[str, R]) -> dict[str, R]:
        """Return the table after the changes."""
        return present(self.rows) if self.is_whole else merged(table, self.rows)


def present(rows: Mapping[str, R | None]) -> dict[str, R]:
    """Return the rows that are not deleted."""
    return {name: row for name, row in rows.items() if row is not None}


def merged(table: Mapping[str, R], rows: Mapping[str, R | None]) -> dict[str, R]:
    """Return a table after a change."""
    return present({**table, **rows})


def is_newer(version: DataVersion, than: DataVersion) -> bool:
    """Return whether a version is newer than another one."""
    return (version.state_version, version.counter) > (than.state_version, than.counter)


class TableJournal(Generic[R]):
    """Journal of one table.

    Args:
        read_row: Decodes a row from its JSON object and name; raises ValueError.
        epoch: Epoch of this master; 0 without a controller.
    Attributes:
        epoch: See above; set when the same master is elected again.
    """

    def __init__(
        self,
        kind: TableKind,
        journal_log: StoreLog,
        read_row: Callable[[JsonObject, str], R],
        *,
        epoch: int = 0,
    ) -> None:
        self._kind, self._log, self._read_row = kind, journal_log, read_row
        self.epoch = epoch
        self._on = self._in_snapshot = False
        self._base, self._version = -1, DataVersion()

    @property
    def is_on(self) -> bool:
        """Whether changes are appended: from the first replica until the next start."""
        self._on = self._on or self._log.is_copied
        return self._on

    # -- changes ------------------------------------------------------------------------------

    def version_after(self, version: DataVersion, now_ms: int) -> DataVersion:
        """Return the version after another change by this master."""
        following = version.next(now_ms)
        return DataVersion(
            following.counter, following.timestamp_ms, max(following.state_version, self.epoch)
        )

    def check(self) -> None:
        """Check that a change can be appended.

        A replica must not change tables: its version would count changes that its master lacks.

        Raises:
            RequestError: Changes are refused now.
        """
        if (self.is_on or self._log.is_read_only) and self._log.refusal:
            statement = f"{self._kind.name.lower()}s cannot be changed"
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"{statement}: {self._log.refusal}"
            )

    def append(self, rows: Mapping[str, R | None], version: DataVersion) -> None:
        """Append changed rows (None: deleted); without replicas, only record that some are missing.

        Raises:
            RequestError: The store refused the append; the table must not be changed.
        """
        if not self.is_on:
            self._base = -1
            return
        try:
            for texts, _ in _parts(rows):
                self._log.append(self._kind.value, self._encode(version, self._base, texts))
        except RequestError:
            self._base, self._in_snapshot = -1, False  # the log may contain only part of the change
            raise
        self._version = version

    async def confirm(self) -> None:
        """Wait until the last change is confirmed, so that it survives a failover.

        Raises:
            RequestError: The confirmation timed out.
        """
        if self.is_on:
            await self._log.confirm()

    async def snapshot_if_needed(self, table: Mapping[str, R], version: DataVersion) -> None:
        """Append a snapshot if the last one is removed, incomplete or old.

        Other tasks run between two parts. After a refusal the next call retries.
        """
        if not self._needs_snapshot(len(table)):
            return
        _, base = self._log.bounds(self._kind.value)
        self._in_snapshot, self._version = True, version
        try:
            for number, (texts, is_last) in enumerate(_parts(dict(table))):
                if not self._in_snapshot:
                    return
                newest = base if is_last else self._base
                part_text = f'"part":{number},"last":{json.dumps(is_last)},'
                body = self._encode(self._version, newest, texts, part_text)
                self._log.append(self._kind.value, body)
                self._base = newest
                await asyncio.sleep(0)
        except RequestError as error:
            log.debug("no snapshot of the %s table now: %s", self._kind.name, error)

    def _needs_snapshot(self, rows: int) -> bool:
        if not self.is_on or self._log.refusal:
            return False
        first, end = self._log.bounds(self._kind.value)
        return self._base < first or end - self._base > max(CHANGES_MIN, rows // 8)

    def _encode(self, version: DataVersion, base: int, texts: str, part_text: str = "") -> bytes:
        kind = self._kind.name.lower()
        version_text = json_dialect.dumps_compact(version.to_json())
        head = f'"kind":"{kind}","version":{version_text},"base":{base},{part_text}'
        return f'{{{head}"rows":{{{texts}}}}}'.encode()

    # -- start --------------------------------------------------------------------------------

    def replay(self, version: DataVersion) -> Replayed[R] | None:
        """Return the changes that a file of this version does not have; None if there are none."""
        reader = _Reader(self._kind, self._log, self._read_row)
        try:
            newest = next(reader.backwards(), None)
            if newest is None:
                return None
            base = newest.base if reader.first <= newest.base < reader.end else -1
            if not is_newer(newest.version, version):
                self._base = base if newest.version == version else -1
                return None
            rows = reader.from_snapshot(base) if base >= 0 else None
            if rows is not None:
                self._base = base
                return Replayed(newest.version, rows, is_whole=True)
            return Replayed(newest.version, reader.newer_than(version), is_whole=False)
        finally:
            reader.report()


class _Reader(Generic[R]):
    """Reader of one journal queue; collects malformed records for one log line."""

    def __init__(
        self, kind: TableKind, journal_log: StoreLog, read_row: Callable[[JsonObject, str], R]
    ) -> None:
        self._kind, self._log, self._read_row = kind, journal_log, read_row
        self._skipped: dict[int, str] = {}
        self.first, self.end = journal_log.bounds(kind.value)

    def backwards(self) -> Iterator[JournalRecord[R]]:
        """Yield changes and last parts of snapshots, newest first."""
        for index in range(self.end - 1, self.first - 1, -1):
            record = self._read(index)
            if record is not None and (record.part < 0 or record.is_last):
                yield record
            if len(self._skipped) > SKIPPED_MAX:
                return

    def from_snapshot(self, base: int) -> dict[str, R | None] | None:
        """Return the rows of a snapshot with later changes; None if the snapshot is incomplete."""
        records = [
            record for index in range(base, self.end) if (record := self._read(index)) is not None
        ]
        parts = [record for record in records if record.part >= 0]
        count = next((n for n, record in enumerate(parts, start=1) if record.is_last), 0)
        if not count or [record.part for record in parts[:count]] != [*range(count)]:
            return None
        rows: dict[str, R | None] = {}
        for record in parts[:count]:
            rows |= record.rows
        for record in records:
            if record.part < 0:
                rows |= record.rows
        return rows

    def newer_than(self, version: DataVersion) -> dict[str, R | None]:
        """Return the rows of changes that are newer than a version."""
        rows: dict[str, R | None] = {}
        for record in self.backwards():
            if not is_newer(record.version, version):
                break
            if record.part < 0:
                rows = {**record.rows, **rows}
        return rows

    def _read(self, position: int) -> JournalRecord[R] | None:
        try:
            return decode(self._log.body(self._kind.value, position), self._kind, self._read_row)
        except (RecordUnreadable, ValueError) as error:
            self._skipped[position] = str(error)
            return None

    def report(self) -> None:
        """Log the skipped records."""
        shown = [
            f"queue offset {position}: {reason}"[: 2 * SHOWN_CHARACTERS]
            for position, reason in sorted(self._skipped.items())[:SHOWN_MAX]
        ]
        if shown:
            log.error(
                "skipped %d records of the %s table in the log that are damaged or not written by "
                "a broker: %s",
                len(self._skipped),
                self._kind.name,
                "; ".join(shown),
            )


def decode(
    body: bytes, kind: TableKind, read_row: Callable[[JsonObject, str], R]
) -> JournalRecord[R]:
    """Decode the body of a record.

    Raises:
        ValueError: The body is malformed.
    """
    try:
        value = json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict) or value.get("kind") != kind.name.lower():
        raise ValueError(f"it is not a change of a {kind.name.lower()}")
    rows = value.get("rows")
    if not isinstance(rows, dict) or not isinstance(value.get("version"), dict):
        raise ValueError("it has no rows, or no version")
    return JournalRecord(
        DataVersion.from_json(value["version"]),
        integer(value, "base", -1),
        {name: _row_of(row, name, read_row) for name, row in rows.items()},
        integer(value, "part", -1),
        value.get("last") is True,
    )


def _row_of(
    value: JsonObject | None, name: str, read_row: Callable[[JsonObject, str], R]
) -> R | None:
    if value is None:
        return None
    row = read_row(value, name)
    if row.name != name:
        raise ValueError(f"row {name!r} has another name")
    return row


def _parts(rows: Mapping[str, Row | None]) -> Iterator[tuple[str, bool]]:
    """Yield (encoded rows of bounded size, whether they are the last)."""
    texts: list[str] = []
    size = 0
    for name, row in rows.items():
        if size >= PART_BYTES:
            yield ",".join(texts), False
            texts, size = [], 0
        value = json_dialect.dumps_compact(row.to_json()) if row is not None else "null"
        texts.append(f"{json_dialect.dumps_compact(name)}:{value}")
        size += len(texts[-1])
    yield ",".join(texts), True
