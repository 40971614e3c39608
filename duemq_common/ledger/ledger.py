"""Open ledger: schema created, owner checked, one transaction per write. Every call blocks.

A connection is kept for one transaction only, so each call detects a missing file or server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Select,
    Table,
    case,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError

from duemq_common.existence import exists
from duemq_common.ledger import schema
from duemq_common.ledger.engine import READ_ONLY, SQLITE, make_engine, parse_url, sqlite_path
from duemq_common.ledger.errors import LedgerError, LedgerOfAnotherStore, LedgerUnavailable
from duemq_common.ledger.location import LedgerLocation, shown_url
from duemq_common.ledger.records import LedgerRecord, LogSnapshot, Row
from duemq_common.ledger.tables import EVENTS, IDENTITY, METADATA, SAMPLES

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

TEXT_CHARS_MAX: Final = 2_000
SAMPLES_KEPT_MAX: Final = 10_000
"""Maximum samples of one run, about half a day; beyond that every second one is deleted."""
AWAY: Final = "Work continues without it; it catches up once it is available"
REFUSED: Final = "Work continues without it; please report this"
MISSING: Final = "The first plan, migration or audit of a store creates it"
_R = TypeVar("_R")


class Ledger:
    """Open ledger.

    Args:
        store_id: Identity of its owner; "" if it is only read.
    Attributes:
        where: URL for messages, without the password.
    """

    def __init__(self, engine: Engine, where: str, store_id: str = "") -> None:
        self.engine, self.where, self._store_id = engine, where, store_id
        self._path = sqlite_path(engine.url)
        self._file = self._file_now()

    @classmethod
    def open(cls, location: LedgerLocation, *, now_ms: int) -> Self:
        """Open a store's ledger; create it if there is none.

        Raises:
            LedgerOfAnotherStore: It belongs to another store.
            LedgerNewer: A later DueMQ wrote it.
            LedgerUnavailable: It cannot be reached or written now.
            LedgerError: The URL cannot be used.
        """
        engine = make_engine(parse_url(location.url), busy_ms=location.busy_ms)
        where = shown_url(location.url)
        with _our_errors(where), engine.begin() as connection:
            schema.create(connection, where, is_written=True)
            _assign_owner(connection, where, location, now_ms)
        return cls(engine, where, location.store_id)

    @classmethod
    def open_existing(cls, url: str) -> Self:
        """Open a ledger of any store to read it.

        Raises:
            LedgerNewer: A later DueMQ wrote it.
            LedgerUnavailable: The ledger does not exist, or cannot be reached now.
            LedgerError: The URL cannot be used.
        """
        engine, where = make_engine(parse_url(url)), shown_url(url)
        path = sqlite_path(engine.url)
        if path is not None and not exists(path):
            raise LedgerUnavailable(where, "there is no such file", MISSING)
        with _our_errors(where), engine.begin() as connection:
            if schema.version_of(connection) is None:
                raise LedgerUnavailable(where, "the database is empty", MISSING)
            schema.create(connection, where, is_written=False)
        return cls(engine, where)

    def close(self) -> None:
        """Release its connections."""
        self.engine.dispose()

    def write(self, records: Iterable[LedgerRecord]) -> None:
        """Write records, all or none; of two records with one key the later one stays.

        Raises:
            LedgerUnavailable: It is gone, locked or full; the same call may succeed later.
            LedgerError: It refuses these records.
        """
        with self._transaction() as connection:
            _write(connection, records)

    def rebuild(self, snapshot: LogSnapshot) -> None:
        """Bring the ledger to the state of the log; keep rows that are in the ledger only.

        Raises:
            LedgerUnavailable: It is gone, locked or full; the same call may succeed later.
            LedgerError: It refuses these records.
        """
        with self._transaction() as connection:
            # A power cut lost the ownership records of these events.
            connection.execute(delete(EVENTS).where(EVENTS.c.mark_offset >= snapshot.next_record))
            _write(connection, snapshot.records())

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection for reading; its statements see one state of the ledger."""
        with _our_errors(self.where), self.engine.connect() as plain:
            yield plain.execution_options(**{READ_ONLY: True})

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        lost = LedgerUnavailable(
            self.where, "it was removed or replaced", "It is rebuilt from the log"
        )
        with _our_errors(self.where):
            file = self._file_now()
            if file != self._file or (self._path and file is None):
                raise lost
            with self.engine.begin() as connection:
                # A new file may reuse the inode of a deleted one: compare the content, too.
                if connection.execute(select(IDENTITY.c.store_id)).scalar() != self._store_id:
                    raise lost
                yield connection

    def _file_now(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino


def read_rows(
    connection: Connection, query: Select[Any], kind: type[_R], **more: object
) -> list[_R]:
    """Return the rows of a query as dataclasses; columns without a field are left out."""
    names_of_fields = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    names = {
        column.name: column.key
        for column in query.selected_columns
        if column.key in names_of_fields
    }
    rows = connection.execute(query).mappings()
    return [kind(**{key: row[name] for name, key in names.items()}, **more) for row in rows]


@contextmanager
def _our_errors(where: str) -> Iterator[None]:
    """Convert the errors of a driver to `LedgerError`s."""
    try:
        yield
    except LedgerError:
        raise
    except (DataError, IntegrityError, OverflowError) as error:
        raise LedgerError(where, f"it refuses a record ({_reason(error)})", REFUSED) from error
    except (DatabaseError, OSError) as error:
        raise LedgerUnavailable(where, _reason(error), AWAY) from error
    except Exception as error:  # a fault of a ledger must not stop the work
        raise LedgerError(where, _reason(error), REFUSED) from error


def _reason(error: BaseException) -> str:
    """Return the text of the driver's error in one line, without statement and values."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__


def _assign_owner(
    connection: Connection, where: str, location: LedgerLocation, now_ms: int
) -> None:
    """Assign an empty ledger to this store; refuse the ledger of another store."""
    owner = connection.execute(select(IDENTITY)).first()
    if owner is None:
        row = {"store_id": location.store_id, "store_path": location.store_path, "made_ms": now_ms}
        connection.execute(insert(IDENTITY).values(id=1, **row))
    elif owner.store_id != location.store_id:
        raise LedgerOfAnotherStore(
            where, expected=location.store_id, actual=owner.store_id, path=owner.store_path
        )


def _write(connection: Connection, records: Iterable[LedgerRecord]) -> None:
    by_table: dict[str, dict[tuple[object, ...], LedgerRecord]] = {}
    for record in records:
        by_table.setdefault(record.TABLE, {})[record.identity] = record
    for name, by_key in by_table.items():
        table, some = METADATA.tables[name], list(by_key.values())
        rows = [{c: _clean(getattr(item, c)) for c in table.c.keys()} for item in some]  # noqa: SIM118
        _upsert(connection, table, rows, kept=some[0].KEPT)
        for item in some:
            _write_parts(connection, item)
    for migration_id in {key[1] for key in by_table.get(SAMPLES.name, ())}:
        _thin_samples(connection, migration_id)


def _upsert(connection: Connection, table: Table, rows: list[Row], kept: tuple[str, ...]) -> None:
    statement = _insert_of(connection)(table)
    names = [c.key for c in table.c if not c.primary_key]
    new: dict[str, ColumnElement[Any]] = {name: statement.excluded[name] for name in names}
    for name in kept:
        old = table.c[name]
        unknown = new[name] < old if isinstance(old.type, Integer) else new[name] == ""
        new[name] = case((unknown, old), else_=new[name])
    keys = list(table.primary_key)
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=new), rows)


def _insert_of(connection: Connection) -> Callable[[Table], sqlite.Insert | postgresql.Insert]:
    """Return the function that makes an INSERT with a rule for existing keys."""
    if connection.dialect.name == SQLITE:
        return sqlite.insert
    from sqlalchemy.dialects import postgresql  # a sixth of the time that all takes to load

    return postgresql.insert


def _write_parts(connection: Connection, record: LedgerRecord) -> None:
    for name, rows in record.parts().items():
        table, key = METADATA.tables[name], {n: getattr(record, n) for n in record.KEY}
        connection.execute(delete(table).filter_by(**key))
        if rows:
            cleaned = [{name: _clean(value) for name, value in row.items()} | key for row in rows]
            connection.execute(insert(table), cleaned)


def _thin_samples(connection: Connection, migration_id: object) -> None:
    """If a run has too many samples, keep the one with the higher lateness of each two."""
    of_run, at_ms = SAMPLES.c.migration_id == migration_id, SAMPLES.c.at_ms
    count = connection.execute(select(func.count()).select_from(SAMPLES).where(of_run)).scalar_one()
    if count <= SAMPLES_KEPT_MAX:
        return
    number = func.row_number().over(order_by=at_ms) - 1
    late = func.coalesce(SAMPLES.c.late_max_ms, -1).label("late")
    pairs = select(at_ms, late, (number - number % 2).label("pair")).where(of_run).subquery()
    order = (pairs.c.late.desc(), pairs.c.at_ms)
    rank = func.row_number().over(partition_by=pairs.c.pair, order_by=order).label("place")
    placed = select(pairs.c.at_ms, rank).subquery()
    second = select(placed.c.at_ms).where(placed.c.place == 2)
    connection.execute(delete(SAMPLES).where(of_run, at_ms.in_(second)))


def _clean(value: object) -> object:
    """Return a value that every database accepts: bounded text without NUL and lone surrogates."""
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        return value
    text = str(value)[:TEXT_CHARS_MAX].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()
