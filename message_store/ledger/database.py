"""An open ledger: schema upgraded, owner checked, one transaction per write.

Users: `migration.ledger.store.Ledger`, `reconciliation.jobs.audit_ledger.AuditLedger`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError

from message_store.ledger import models, schema
from message_store.ledger.engine import (
    BUSY_MS,
    READ_ONLY,
    SQLITE,
    make_engine,
    parse_url,
    shown,
    sqlite_path,
)
from message_store.ledger.errors import LedgerError, LedgerUnavailable

TEXT_CHARS_MAX: Final = 2_000


class Database:
    """An open ledger.

    Args:
        engine: connects to it.
        url: for messages and, of SQLite, to see whether the file is still there.
        store_id: whose it is; "" for one that is only read.
    Attributes:
        AWAY, REFUSED, MISSING: what to do when it is away, refuses a row, or was never made.
    """

    AWAY: ClassVar[str] = "Try again when it is back"
    REFUSED: ClassVar[str] = "Please report this"
    MISSING: ClassVar[str] = "It is made when something is written to it"

    def __init__(self, engine: Engine, url: URL, store_id: str = "") -> None:
        self._engine, self.url, self.where = engine, url, shown(url)
        self._store_id = store_id
        self._path = sqlite_path(url)
        self._file = self._file_now()

    @classmethod
    def open(
        cls, url: str, *, store_id: str, store_path: str, now_ms: int, busy_ms: int = BUSY_MS
    ) -> Self:
        """Open a store's ledger; make it if there is none, upgrade it if it is old.

        Raises:
            LedgerOfAnotherStore: It belongs to another store.
            LedgerNewer: A later DueMQ wrote it.
            LedgerUnavailable: It cannot be reached or written now.
            LedgerError: The URL names nothing that can be used.
        """
        parsed = parse_url(url)
        engine, where = make_engine(parsed, busy_ms=busy_ms), shown(parsed)
        with cls._reaching(where), engine.begin() as connection:
            schema.upgrade(connection, where)
            schema.claim(connection, where, store_id=store_id, path=store_path, now_ms=now_ms)
        return cls(engine, parsed, store_id)

    @classmethod
    def open_existing(cls, url: str, *, busy_ms: int = BUSY_MS) -> Self:
        """Open a ledger to read it, whosever it is; upgrade it if it is old.

        Raises:
            LedgerNewer: A later DueMQ wrote it.
            LedgerUnavailable: There is none, or it cannot be reached now.
            LedgerError: The URL names nothing that can be used.
        """
        parsed = parse_url(url)
        engine, where = make_engine(parsed, busy_ms=busy_ms), shown(parsed)
        path = sqlite_path(parsed)
        if path is not None and not path.exists():
            raise LedgerUnavailable(where, "there is no such file", cls.MISSING)
        with cls._reaching(where), engine.begin() as connection:
            if schema.version_of(connection) is None:
                raise LedgerUnavailable(where, "the database is empty", cls.MISSING)
            schema.upgrade(connection, where)
        return cls(engine, parsed)

    def close(self) -> None:
        """Let go of it."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        lost = LedgerUnavailable(
            self.where, "it was removed or replaced", "It is made again of the log"
        )
        with self._reaching(self.where):
            found = self._file_now()
            if found != self._file or (self._path and found is None):
                raise lost
            with self._engine.begin() as connection:
                if schema.owner(connection) != self._store_id:  # files are numbered anew
                    raise lost
                yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._reaching(self.where), self._engine.connect() as plain:
            yield plain.execution_options(**{READ_ONLY: True})

    def _file_now(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    @classmethod
    @contextmanager
    def _reaching(cls, where: str) -> Iterator[None]:
        """Turn what a driver raises into our errors."""
        try:
            yield
        except LedgerError:
            raise
        except (DataError, IntegrityError, OverflowError) as error:
            why = f"it refuses a record ({_reason(error)})"
            raise LedgerError(where, why, cls.REFUSED) from error
        except (DatabaseError, OSError) as error:
            raise LedgerUnavailable(where, _reason(error), cls.AWAY) from error
        except Exception as error:  # nothing that goes wrong in a ledger may stop the work
            raise LedgerError(where, _reason(error), cls.REFUSED) from error


def insert_into(connection: Connection, model: type[models.Base]) -> tuple[Table, Any]:
    """Return a table and an insert into it that can say what a conflict does."""
    table = model.__table__
    assert isinstance(table, Table)
    maker = sqlite.insert if connection.dialect.name == SQLITE else postgresql.insert
    return table, maker(table)


def key_names(model: type[models.Base]) -> list[str]:
    """Return the names of a table's key."""
    return [column.name for column in model.__table__.primary_key]


def clean(value: Any) -> Any:
    """Return what any database takes: plain text without NUL and halves of characters, not long."""
    if not isinstance(value, str):
        return value
    text = str(value)[:TEXT_CHARS_MAX].replace("\0", "\ufffd")
    return text.encode("utf-8", "replace").decode()


def _reason(error: BaseException) -> str:
    """Return the driver's own words in one line, without statement and values."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split()) or type(cause).__name__
