"""Connections to a ledger, SQLite or PostgreSQL, with a limit on every wait."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from duemq_common.ledger.errors import LedgerError
from duemq_common.ledger.location import BUSY_MS, FILE_NAME, shown_url

SQLITE, POSTGRESQL = "sqlite", "postgresql"
CONNECT_S: Final = 5
STATEMENT_MS: Final = 10_000
WAL_TRIES: Final = 10
READ_ONLY: Final = "duemq_read_only"


def default_url(store_root: Path | str) -> str:
    """Return the URL of the ledger in a store's directory."""
    return f"{SQLITE}:///{Path(store_root).absolute() / FILE_NAME}"


def parse_url(text: str) -> URL:
    """Return a ledger's URL with the driver that is used.

    Raises:
        LedgerError: The text is not a URL, or names a database that is not supported.
    """
    remedy = f"Use {SQLITE}:////path/to/file or {POSTGRESQL}://user@host/database"
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise LedgerError("?", "its URL is malformed", remedy) from error
    kind = url.drivername.partition("+")[0]
    if kind in ("postgres", POSTGRESQL):
        return url.set(drivername=f"{POSTGRESQL}+psycopg")
    if kind == SQLITE and url.database and url.database != ":memory:":
        return url.set(drivername=SQLITE)
    raise LedgerError(shown_url(text), "this kind of database is not supported", remedy)


def sqlite_path(url: URL) -> Path | None:
    """Return the file of a SQLite ledger, None for a server."""
    return Path(url.database or "") if url.drivername == SQLITE else None


def make_engine(url: URL, *, busy_ms: int = BUSY_MS) -> Engine:
    """Return an engine that connects at first use.

    Raises:
        LedgerError: The driver is not installed.
    """
    if url.drivername == SQLITE:
        return _sqlite(url, busy_ms)
    arguments: dict[str, str | int] = {
        "connect_timeout": CONNECT_S,
        "application_name": "duemq",
        "options": f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={busy_ms} "
        f"-c idle_in_transaction_session_timeout={STATEMENT_MS}",
        # The timeouts also end waits for a server that stops responding.
        "tcp_user_timeout": STATEMENT_MS,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
    }
    try:
        return create_engine(url, connect_args=arguments, poolclass=NullPool)
    except ImportError as error:
        remedy = "Install it: pip install 'duemq[postgresql]'"
        where = shown_url(url.render_as_string())
        raise LedgerError(where, "psycopg is not installed", remedy) from error


def _sqlite(url: URL, busy_ms: int) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": busy_ms / 1_000})

    def on_connect(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # `on_begin` opens transactions, also around DDL
        _use_wal(connection)
        for setting in ("synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}").close()

    def on_begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get(READ_ONLY, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch a file to WAL; SQLite refuses this while another connection is active."""
    for _ in range(WAL_TRIES):
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError:
            connection.execute("BEGIN IMMEDIATE").close()  # waits until the other one has ended
            connection.execute("ROLLBACK").close()
    connection.execute("PRAGMA journal_mode=WAL").close()
