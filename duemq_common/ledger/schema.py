"""Schema upgrades of the ledger. Instead of a downgrade, a ledger is made again from the log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from duemq_common.ledger.engine import POSTGRESQL
from duemq_common.ledger.errors import LedgerNewer
from duemq_common.ledger.tables import VERSION_TABLE

HERE: Final = Path(__file__).resolve().parent
UPGRADE_LOCK: Final = 0x4475654D51  # an arbitrary number, for one upgrade at a time on a server


def config_for(connection: Connection | None) -> Config:
    """Return Alembic's configuration of the steps in this package."""
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def newest() -> str:
    """Return the version of the schema that this code reads and writes."""
    head = ScriptDirectory.from_config(config_for(None)).get_current_head()
    assert head is not None
    return head


def version_of(connection: Connection) -> str | None:
    """Return the version of a ledger's schema, None for an empty database."""
    return max(_heads(connection), default=None)


def upgrade(connection: Connection, where: str, *, to: str = "head") -> None:
    """Upgrade a ledger to a version inside the caller's transaction.

    Raises:
        LedgerNewer: Its version is newer than this code.
    """
    if connection.dialect.name == POSTGRESQL:
        connection.execute(text(f"SELECT pg_advisory_xact_lock({UPGRADE_LOCK})"))
    config = config_for(connection)
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    found = set(_heads(connection))
    if not found <= known:
        raise LedgerNewer(where, found=found, newest=newest())
    if found != {scripts.as_revision_number(to)}:
        command.upgrade(config, to)


def _heads(connection: Connection) -> tuple[str, ...]:
    options = {"version_table": VERSION_TABLE}
    return tuple(MigrationContext.configure(connection, opts=options).get_current_heads())
