"""Stored table: rows in memory, in one of Apache's JSON files, and in the journal.

A change is on disk before it is in the table. Changes are made one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Generic

from msgspec import Raw

from delayed_delivery.steps import collected
from duemq.net.wire_json import encode
from duemq.registry.table_file import TableFile
from duemq.registry.table_journal import R, TableJournal, merged, present
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.data_version import DataVersion
from duemq_common.disk_errors import remedy_of
from duemq_common.errors import RequestError


class StoredTable(Generic[R]):
    """Base of the managers of topics and groups.

    Args:
        unwritable: Response code of a change while the file cannot be written.
    Attributes:
        version: Version of the table.
    """

    def __init__(
        self, file: TableFile, journal: TableJournal[R], clock: Clock, unwritable: ResponseCode
    ) -> None:
        self._file, self._journal, self._clock = file, journal, clock
        self._unwritable = unwritable
        self._table: dict[str, R] = {}
        self._extra: dict[str, object] = {}  # other members of the file
        self._unsaved: set[str] = set()  # rows of the table that the file does not have
        self._dirty = False
        self._changing = asyncio.Lock()
        self.version = DataVersion()

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[R]:
        return iter(list(self._table.values()))

    def to_json(self) -> dict[str, object]:
        """Return the immutable content of the file."""
        rows = {name: row.to_json() for name, row in self._table.items()}
        return {"dataVersion": self.version.to_json(), **self._extra, self._file.member: rows}

    async def encoded(self) -> dict[str, object]:
        """Return the content of the file at one instant, with encoded rows.

        Other work runs between the rows, of which there may be tens of thousands.
        """
        version, rows = self.version.to_json(), list(self._table.items())
        encoded = await collected((name, Raw(encode(row.to_json()))) for name, row in rows)
        return {"dataVersion": version, **self._extra, self._file.member: dict(encoded)}

    def persist(self) -> None:
        """Write the file if the table has changed.

        Raises:
            OSError: The write failed.
        """
        if self._dirty:
            self._file.write(self._extra, self._table, self.version)
            self._dirty = False
            self._unsaved.clear()

    async def save(self) -> None:
        """Do the same as `persist` in a thread, for the periodic job.

        Raises:
            OSError: The write failed; the next call retries.
        """
        if self._dirty:
            async with self._changing:
                await self._write_whole(self._table.copy(), self.version)

    def begin_epoch(self, epoch: int) -> None:
        """Count the changes from now on as those of a newer epoch of the same master."""
        self._journal.epoch = epoch

    async def snapshot_if_needed(self) -> None:
        """Append a snapshot of the table to the journal if one is needed."""
        await self._journal.snapshot_if_needed(self._table, self.version)

    async def _save(self, rows: Mapping[str, R | None]) -> None:
        """Store changed rows (None: deleted) and unsaved ones on disk and in the journal.

        The caller holds `_changing`, and changes the table in the same turn of the event loop.
        """
        self._journal.check()
        before = self.version
        version = self._journal.version_after(before, self._clock.now_ms())
        present_rows = present(rows)
        try:
            if len(present_rows) < len(rows) or self._file.needs_rewrite:
                await self._write_whole(merged(self._table, rows), version)
            else:
                await self._append(present_rows, version)
        except OSError as error:
            reason = f"{error.strerror or error}. {remedy_of(error)}"
            text = f"{self._file.path} cannot be written: {reason}"
            raise RequestError(self._unwritable, text) from error
        if self.version != before:  # a row was created at its first use meanwhile
            version = self._journal.version_after(self.version, self._clock.now_ms())
            self._dirty = True
        try:
            self._journal.append(rows, version)
        except RequestError:
            self._dirty = True  # the file has a change that is not in the table
            raise
        self.version = version

    async def _append(self, changed: Mapping[str, R], version: DataVersion) -> None:
        unsaved = {name: self._table[name] for name in self._unsaved if name in self._table}
        await asyncio.to_thread(self._file.append, {**unsaved, **changed}, version)
        self._unsaved -= unsaved.keys()
        self._dirty = True

    async def _write_whole(self, table: Mapping[str, R], version: DataVersion) -> None:
        was_dirty, self._dirty = self._dirty, False
        unsaved, self._unsaved = self._unsaved, set()
        try:
            await asyncio.to_thread(self._file.write, self._extra, table, version)
        except BaseException:
            self._dirty = was_dirty or self._dirty
            self._unsaved |= unsaved
            raise
