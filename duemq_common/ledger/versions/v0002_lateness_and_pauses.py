"""Samples of rate and lateness; cause of a pause; result of a verification.

The last two could be derived from other columns before, but only by long queries.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duemq_common.ledger.errors import LedgerOnlyForward

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    no = sa.false()
    with op.batch_alter_table("duemq_levels") as levels:
        levels.add_column(sa.Column("paused", sa.Boolean(), nullable=False, server_default=no))
        levels.add_column(sa.Column("cause", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("duemq_levels") as levels:
        levels.alter_column("paused", server_default=None)
        levels.alter_column("cause", server_default=None)
    with op.batch_alter_table("duemq_verifications") as rows:
        rows.add_column(sa.Column("agrees", sa.Boolean(), nullable=False, server_default=no))
    op.execute(
        "UPDATE duemq_verifications SET agrees = "
        "(levels_count = timers_count AND levels_checksum = timers_checksum)"
    )
    with op.batch_alter_table("duemq_verifications") as rows:
        rows.alter_column("agrees", server_default=None)
    op.create_table(
        "duemq_samples",
        sa.Column("migration_id", sa.String(64), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("rate_per_s", sa.Double(), nullable=False),
        sa.Column("delivered", sa.BigInteger(), nullable=False),
        sa.Column("late_p50_ms", sa.BigInteger(), nullable=True),
        sa.Column("late_p99_ms", sa.BigInteger(), nullable=True),
        sa.Column("late_max_ms", sa.BigInteger(), nullable=True),
        sa.Column("batch_units", sa.BigInteger(), nullable=False),
        sa.Column("pause_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("migration_id", "at_ms", name=op.f("pk_duemq_samples")),
    )


def downgrade() -> None:
    raise LedgerOnlyForward(op.get_bind().engine.url.render_as_string(hide_password=True))
