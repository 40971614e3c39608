"""Schema of the ledger: created in one transaction, compared at each opening.

There is one version. A change of the tables needs another one, and a step from this one to it. A
table of its own that earlier builds do not read is added to a ledger that lacks it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, insert, inspect, select, text

from duemq_common.ledger.engine import POSTGRESQL
from duemq_common.ledger.errors import LedgerNewer
from duemq_common.ledger.tables import AUDIT_FINDINGS, METADATA, VERSIONS

VERSION: Final = "0003"  # as earlier builds wrote it for the same tables
CREATION_LOCK: Final = 0x4475654D51  # an arbitrary number, for one creation at a time on a server


def version_of(connection: Connection) -> str | None:
    """Return the version of a ledger's schema, None if it has no tables."""
    if not inspect(connection).has_table(VERSIONS.name):
        return None
    return connection.execute(select(VERSIONS.c.version_num)).scalar()


def create(connection: Connection, where: str, *, is_written: bool) -> None:
    """Create the tables in an empty database, in the transaction of the connection.

    Args:
        is_written: Whether the ledger gets the tables that it lacks.
    Raises:
        LedgerNewer: The ledger has another version.
    """
    if connection.dialect.name == POSTGRESQL:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({CREATION_LOCK})"))
    version = version_of(connection)
    if version is None:
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(insert(VERSIONS).values(version_num=VERSION))
        return
    if version != VERSION:
        raise LedgerNewer(where, version=version, newest=VERSION)
    if is_written:
        AUDIT_FINDINGS.create(connection, checkfirst=True)
