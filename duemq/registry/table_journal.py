"""Table journal: topics and consumer groups as records of the log, which a failover keeps exactly.

    DUEMQ_TABLES, queue 0 (topics)   snapshot | change  change  change | snapshot | change ...
                  queue 1 (groups)      ^--------------- base of each record ---------'

The tables are files below config/, and replicas copy them only now and then. A master that has
replicas therefore appends each change to the log as well: the changed rows, the deleted names, and
the version of the table after the change. A change of a topic precedes the topic's first message. A
snapshot has the whole table, in parts of bounded size; changes between its parts are newer than it.

A start compares the version in the file with that of the last record, by state version (the
master's epoch) and counter, which only grow along one log:

    file not older   The file is kept. It was written at each change, or copied from the former
                     master, which had more than its log has here; or the log was truncated or lost
                     its end in a power cut. Changes that the file has and the log lacks were
                     accepted; the next snapshot adds them to the log.
    file older       It was copied or written before the last changes, or another master has
                     replaced the end of this log since, in a newer epoch, so that versions of the
                     file may describe changes that no log has any more. The table is made of the
                     log alone: the snapshot at `base`, and the changes after it.
    no snapshot      Retention removed it, or it is damaged: the changes that are newer than the
                     file are applied to the file's table, found from the end of the queue back.

Without a controller, state versions are 0: the counter of a former master that was not replaced by
a copy yet can then be higher than that of its successor. The copy follows as soon as the replica
reaches its master.

`base` is -1 while the log lacks a part of the table; the next snapshot ends that. A master appends
one too when retention has removed the last one, and after many changes, which bounds what a start
reads. Records that are not a broker's are skipped with one notice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from duemq.net.codes import ResponseCode
from duemq.registry.config_file import JsonObject
from duemq.registry.data_version import DataVersion, integer
from message_store import json_dialect
from message_store.errors import RecordUnreadable, RequestError

log = logging.getLogger(__name__)
PART_BYTES: Final = 64 << 10
CHANGES_MIN: Final = 1_000
"""Records after a snapshot before the next one; in a large table, an eighth of its rows."""
SKIPPED_MAX: Final = 10_000
"""Records that a start skips; those before are not read."""
SHOWN_CHARACTERS, SHOWN_MAX = 100, 3  # of malformed records, in one log line


class TableKind(Enum):
    """Which table a record changes; its value is the queue of these records."""

    TOPIC = 0
    GROUP = 1


class Row(Protocol):
    """One row of a table; it never changes."""

    @property
    def name(self) -> str: ...
    def to_json(self) -> JsonObject: ...


R = TypeVar("R", bound=Row)


class JournalLog(Protocol):
    """The part of the message store that holds the journal."""

    @property
    def is_copied(self) -> bool:
        """Whether replicas copy the log, or are configured to."""
        ...

    @property
    def is_read_only(self) -> bool:
        """Whether another broker's changes come with the log, as on a replica."""
        ...

    @property
    def refusal(self) -> str:
        """Why nothing can be appended; empty if it can."""
        ...

    def bounds(self, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset of a queue and its end."""
        ...

    def body(self, queue_id: int, offset: int) -> bytes:
        """Return the body of a record.

        Raises:
            RecordUnreadable: It is gone or damaged.
            ValueError: It is not a broker's.
        """
        ...

    def append(self, queue_id: int, body: bytes) -> None:
        """Append a record.

        Raises:
            RequestError: It is refused; nothing has changed.
        """
        ...

    async def confirm(self) -> None:
        """Wait until disk and replicas have the log as far as messages need it.

        Raises:
            RequestError: They do not have it in time.
        """
        ...


class NoLog:
    """The journal of a table without one."""

    is_copied, is_read_only, refusal = False, False, ""

    def bounds(self, queue_id: int) -> tuple[int, int]:
        """Return those of an empty queue."""
        return 0, 0

    def body(self, queue_id: int, offset: int) -> bytes:
        """Raise: there is no record."""
        raise RecordUnreadable(offset, "there is no journal")

    def append(self, queue_id: int, body: bytes) -> None:
        """Drop the record."""

    async def confirm(self) -> None:
        """Return: there is nothing to confirm."""


@dataclass(frozen=True, slots=True)
class JournalRecord(Generic[R]):
    """One record.

    Attributes:
        version: Of the table, after the change; of a snapshot's last part: the newest one so far.
        base: Queue offset of the snapshot that this record continues; -1: there is none.
        rows: Changed rows by name; None: the row was deleted.
        part: Number of this part of a snapshot; -1: a change.
        is_last: Whether the snapshot ends with this part.
    """

    version: DataVersion
    base: int
    rows: Mapping[str, R | None]
    part: int = -1
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Replayed(Generic[R]):
    """What the journal knows better than the file.

    Attributes:
        version: Of the table, with this applied.
        rows: Rows by name; None: there is no such row.
        is_whole: Whether the table has no other rows than these.
    """

    version: DataVersion
    rows: Mapping[str, R | None]
    is_whole: bool

    def applied_to(self, table: Mapping[str, R]) -> dict[str, R]:
        """Return the table of the file with the changes."""
        return present(self.rows) if self.is_whole else merged(table, self.rows)


def present(rows: Mapping[str, R | None]) -> dict[str, R]:
    """Return the rows that were not deleted."""
    return {name: row for name, row in rows.items() if row is not None}


def merged(table: Mapping[str, R], rows: Mapping[str, R | None]) -> dict[str, R]:
    """Return a table after a change."""
    return present({**table, **rows})


def is_newer(version: DataVersion, than: DataVersion) -> bool:
    """Return whether a version follows another one in a history of the table."""
    return (version.state_version, version.counter) > (than.state_version, than.counter)


class TableJournal(Generic[R]):
    """The journal of one table.

    Args:
        read_row: Returns the row of a JSON object and its name; raises ValueError.
        epoch: Epoch of this master; 0 without a controller.
    """

    def __init__(
        self,
        kind: TableKind,
        journal_log: JournalLog,
        read_row: Callable[[JsonObject, str], R],
        *,
        epoch: int = 0,
    ) -> None:
        self._kind, self._log, self._read_row = kind, journal_log, read_row
        self._epoch = epoch
        self._on = self._in_snapshot = False
        self._base, self._version = -1, DataVersion()

    @property
    def is_on(self) -> bool:
        """Whether changes are appended: from the first replica on, until the next start."""
        self._on = self._on or self._log.is_copied
        return self._on

    # -- changes ------------------------------------------------------------------------------

    def version_after(self, version: DataVersion, now_ms: int) -> DataVersion:
        """Return the version after one more change by this master."""
        found = version.next(now_ms)
        return DataVersion(found.counter, found.timestamp_ms, max(found.state_version, self._epoch))

    def check(self) -> None:
        """Check that a change can be appended.

        A replica changes nothing: its version would count changes that its master did not make.

        Raises:
            RequestError: It cannot now.
        """
        if (self.is_on or self._log.is_read_only) and self._log.refusal:
            what = f"{self._kind.name.lower()}s cannot be changed"
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"{what}: {self._log.refusal}")

    def append(self, rows: Mapping[str, R | None], version: DataVersion) -> None:
        """Append changed rows, None for deleted ones; without replicas only note the gap.

        Raises:
            RequestError: The store refused it; the table must not be changed.
        """
        if not self.is_on:
            self._base = -1
            return
        try:
            for texts, _ in _parts(rows):
                self._log.append(self._kind.value, self._encode(version, self._base, texts))
        except RequestError:
            self._base, self._in_snapshot = -1, False  # the log may have a part of the change
            raise
        self._version = version

    async def confirm(self) -> None:
        """Wait until the last change survives a failover, as a message would.

        Raises:
            RequestError: Disk or replicas do not have it in time.
        """
        if self.is_on:
            await self._log.confirm()

    async def keep_snapshot(self, table: Mapping[str, R], version: DataVersion) -> None:
        """Append a snapshot if the last one is gone, incomplete or far back.

        Other tasks run between two parts. A refusal leaves it to the next call.
        """
        if not self._needs_snapshot(len(table)):
            return
        _, base = self._log.bounds(self._kind.value)
        self._in_snapshot, self._version = True, version
        try:
            for number, (texts, is_last) in enumerate(_parts(dict(table))):
                if not self._in_snapshot:
                    return
                known = base if is_last else self._base
                of_part = f'"part":{number},"last":{json.dumps(is_last)},'
                body = self._encode(self._version, known, texts, of_part)
                self._log.append(self._kind.value, body)
                self._base = known
                await asyncio.sleep(0)
        except RequestError as error:
            log.debug("no snapshot of the %s table now: %s", self._kind.name, error)

    def _needs_snapshot(self, rows: int) -> bool:
        if not self.is_on or self._log.refusal:
            return False
        first, end = self._log.bounds(self._kind.value)
        return self._base < first or end - self._base > max(CHANGES_MIN, rows // 8)

    def _encode(self, version: DataVersion, base: int, texts: str, of_part: str = "") -> bytes:
        kind = self._kind.name.lower()
        of_version = json_dialect.dumps_compact(version.to_json())
        head = f'"kind":"{kind}","version":{of_version},"base":{base},{of_part}'
        return f'{{{head}"rows":{{{texts}}}}}'.encode()

    # -- start --------------------------------------------------------------------------------

    def replay(self, version: DataVersion) -> Replayed[R] | None:
        """Return what the journal knows better than a file of this version; None: nothing."""
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
    """Reads one queue of the journal; collects what is malformed for one notice."""

    def __init__(
        self, kind: TableKind, journal_log: JournalLog, read_row: Callable[[JsonObject, str], R]
    ) -> None:
        self._kind, self._log, self._read_row = kind, journal_log, read_row
        self._skipped: dict[int, str] = {}
        self.first, self.end = journal_log.bounds(kind.value)

    def backwards(self) -> Iterator[JournalRecord[R]]:
        """Yield changes and last parts of snapshots, from the end of the queue back."""
        for at in range(self.end - 1, self.first - 1, -1):
            record = self._read(at)
            if record is not None and (record.part < 0 or record.is_last):
                yield record
            if len(self._skipped) > SKIPPED_MAX:
                return

    def from_snapshot(self, base: int) -> dict[str, R | None] | None:
        """Return all rows: a snapshot's and what follows; None: the snapshot is incomplete."""
        found = [record for at in range(base, self.end) if (record := self._read(at)) is not None]
        parts = [record for record in found if record.part >= 0]
        count = next((n for n, record in enumerate(parts, start=1) if record.is_last), 0)
        if not count or [record.part for record in parts[:count]] != [*range(count)]:
            return None
        rows: dict[str, R | None] = {}
        for record in parts[:count]:
            rows |= record.rows
        for record in found:
            if record.part < 0:
                rows |= record.rows
        return rows

    def newer_than(self, version: DataVersion) -> dict[str, R | None]:
        """Return the rows of the changes that are newer than a version."""
        rows: dict[str, R | None] = {}
        for record in self.backwards():
            if not is_newer(record.version, version):
                break
            if record.part < 0:
                rows = {**record.rows, **rows}
        return rows

    def _read(self, at: int) -> JournalRecord[R] | None:
        try:
            return decode(self._log.body(self._kind.value, at), self._kind, self._read_row)
        except (RecordUnreadable, ValueError) as error:
            self._skipped[at] = str(error)
            return None

    def report(self) -> None:
        """Log the records that were skipped."""
        shown = [
            f"queue offset {at}: {why}"[: 2 * SHOWN_CHARACTERS]
            for at, why in sorted(self._skipped.items())[:SHOWN_MAX]
        ]
        if shown:
            log.error(
                "%d records of the %s table in the log are not a broker's, or damaged; they were "
                "skipped: %s",
                len(self._skipped), self._kind.name, "; ".join(shown),
            )  # fmt: skip


def decode(
    body: bytes, kind: TableKind, read_row: Callable[[JsonObject, str], R]
) -> JournalRecord[R]:
    """Return the record of a body.

    Raises:
        ValueError: The body is malformed.
    """
    try:
        value = json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict) or value.get("kind") != kind.name.lower():
        raise ValueError(f"it is no change of a {kind.name.lower()}")
    rows = value.get("rows")
    if not isinstance(rows, dict) or not isinstance(value.get("version"), dict):
        raise ValueError("it has no rows, or no version")
    return JournalRecord(
        DataVersion.from_json(value["version"]),
        integer(value, "base", -1),
        {name: _row_of(found, name, read_row) for name, found in rows.items()},
        integer(value, "part", -1),
        value.get("last") is True,
    )


def _row_of(
    found: JsonObject | None, name: str, read_row: Callable[[JsonObject, str], R]
) -> R | None:
    if found is None:
        return None
    row = read_row(found, name)
    if row.name != name:
        raise ValueError(f"row {name!r} has another name")
    return row


def _parts(rows: Mapping[str, Row | None]) -> Iterator[tuple[str, bool]]:
    """Yield the rows as the members of JSON objects of bounded size, and whether it is the last."""
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
