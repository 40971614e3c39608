"""Alembic environment, run for every command; schema.py passes the connection."""

from __future__ import annotations

from alembic import context

from duemq_common.ledger.tables import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
