"""Connections: SQLite beside the store, or PostgreSQL by URL; each bounded in how long it waits."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from message_store.ledger.defaults import BUSY_MS as BUSY_MS
from message_store.ledger.defaults import FILE_NAME as FILE_NAME
from message_store.ledger.errors import LedgerError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
CONNECT_S: Final = 5
STATEMENT_MS: Final = 10_000
SILENCE: Final[dict[str, Any]] = {
    "tcp_user_timeout": STATEMENT_MS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
WAL_TRIES: Final = 10
READ_ONLY: Final = "duemq_read_only"


def default_url(store_root: Path | str) -> str:
    """Return the URL of the ledger that lies with a store."""
    return f"{SQLITE}:///{Path(store_root).absolute() / FILE_NAME}"


def parse_url(text: str) -> URL:
    """Return a ledger's URL with the driver that we use.

    Raises:
        LedgerError: It is no URL, or names a database that is not served.
    """
    remedy = f"Use {SQLITE}:////path/to/file or {POSTGRESQL}://user@host/database"
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise LedgerError("?", "its URL cannot be read", remedy) from error
    kind = url.drivername.partition("+")[0]
    if kind in ("postgres", POSTGRESQL):
        return url.set(drivername=f"{POSTGRESQL}+psycopg")
    if kind == SQLITE and url.database and url.database != ":memory:":
        return url.set(drivername=SQLITE)
    raise LedgerError(shown(url), "such a database is not served", remedy)


def shown(url: URL) -> str:
    """Return a URL for messages: without driver and password."""
    plain = url.set(drivername=url.drivername.partition("+")[0], query={})
    return plain.render_as_string(hide_password=True)


def sqlite_path(url: URL) -> Path | None:
    """Return the file of a SQLite ledger, None for a server."""
    return Path(url.database or "") if url.drivername == SQLITE else None


def make_engine(url: URL, *, busy_ms: int = BUSY_MS) -> Engine:
    """Return an engine that connects when it is used.

    Raises:
        LedgerError: The driver is not installed.
    """
    if url.drivername == SQLITE:
        return _sqlite(url, busy_ms)
    limits = (
        f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={busy_ms} "
        f"-c idle_in_transaction_session_timeout={STATEMENT_MS}"
    )
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_S,
        "application_name": "duemq",
        "options": limits,
    }
    arguments |= SILENCE  # a server that answers no more is left, too
    try:
        return create_engine(url, connect_args=arguments, poolclass=NullPool)
    except ImportError as error:
        remedy = "Install it: pip install '.[postgresql]' in DueMQ's source tree"
        raise LedgerError(shown(url), "psycopg is not installed", remedy) from error


def _use_wal(connection: Any) -> None:
    """Have a file use WAL; SQLite refuses that at once, and does not wait, while others do it."""
    for _ in range(WAL_TRIES):
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError:
            connection.execute("BEGIN IMMEDIATE").close()  # this waits for them
            connection.execute("ROLLBACK").close()
    connection.execute("PRAGMA journal_mode=WAL").close()


def _sqlite(url: URL, busy_ms: int) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": busy_ms / 1_000})

    def on_connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say, also around DDL
        _use_wal(connection)
        for setting in ("synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}").close()

    def on_begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get(READ_ONLY, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine
