"""Schema upgrades of the ledger, and the check of its owner.

A ledger goes upwards only: a step back would throw away what the older version cannot hold, and a
new ledger is made of the log at any time.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, select, text

from message_store.ledger.engine import POSTGRESQL
from message_store.ledger.errors import LedgerNewer, LedgerOfAnotherStore
from message_store.ledger.models import VERSION_TABLE, IdentityRow

HERE = Path(__file__).resolve().parent
UPGRADE_LOCK = 0x4475654D51  # any number: one upgrade at a time on a server


def config_for(connection: Connection) -> Config:
    """Return Alembic's configuration of the steps in this package."""
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def newest() -> str:
    """Return the version of the schema that this code reads and writes."""
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    head = ScriptDirectory.from_config(config).get_current_head()
    assert head is not None
    return head


def version_of(connection: Connection) -> str | None:
    """Return the version of a ledger's schema, None for an empty database."""
    found = _heads(connection)
    return max(found) if found else None


def upgrade(connection: Connection, where: str, *, to: str = "head") -> None:
    """Bring a ledger to a version, the newest one, inside the caller's transaction.

    Raises:
        LedgerNewer: Its version is one that this code does not know.
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


def owner(connection: Connection) -> str | None:
    """Return the store whose ledger this is, None if no store claimed it yet."""
    return connection.execute(select(IdentityRow.store_id)).scalar()


def claim(connection: Connection, where: str, *, store_id: str, path: str, now_ms: int) -> bool:
    """Make an empty ledger this store's; return whether it was empty.

    Raises:
        LedgerOfAnotherStore: It belongs to another one.
    """
    found = connection.execute(select(IdentityRow.store_id, IdentityRow.store_path)).first()
    if found is None:
        row = {"id": 1, "store_id": store_id, "store_path": path, "made_ms": now_ms}
        connection.execute(IdentityRow.__table__.insert().values(row))  # type: ignore[attr-defined]
        return True
    if found.store_id != store_id:
        raise LedgerOfAnotherStore(
            where, wanted=store_id, found=found.store_id, path=found.store_path
        )
    return False


def _heads(connection: Connection) -> tuple[str, ...]:
    options = {"version_table": VERSION_TABLE}
    return tuple(MigrationContext.configure(connection, opts=options).get_current_heads())
