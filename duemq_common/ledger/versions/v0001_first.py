"""Identity, plans, migrations, levels, events, verifications."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duemq_common.ledger.errors import LedgerOnlyForward

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "duemq_identity",
        sa.Column("id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("store_id", sa.String(64), nullable=False),
        sa.Column("store_path", sa.Text(), nullable=False),
        sa.Column("made_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_duemq_identity_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_duemq_identity")),
    )
    _plans()
    _runs()


def _plans() -> None:
    op.create_table(
        "duemq_plans",
        sa.Column("plan_id", sa.String(64), nullable=False),
        sa.Column("store_id", sa.String(64), nullable=False),
        sa.Column("made_ms", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("log_end", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", name=op.f("pk_duemq_plans")),
    )
    op.create_table(
        "duemq_plan_levels",
        _plan_id("duemq_plan_levels"),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("delay_ms", sa.BigInteger(), nullable=False),
        sa.Column("pending", sa.BigInteger(), nullable=False),
        sa.Column("pending_bytes", sa.BigInteger(), nullable=False),
        sa.Column("first_due_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_due_ms", sa.BigInteger(), nullable=True),
        sa.Column("overdue", sa.BigInteger(), nullable=False),
        sa.Column("unit_bytes", sa.BigInteger(), nullable=False),
        sa.Column("estimate_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "level", name=op.f("pk_duemq_plan_levels")),
    )
    op.create_table(
        "duemq_plan_obstacles",
        _plan_id("duemq_plan_obstacles"),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("blocks", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("plan_id", "position", name=op.f("pk_duemq_plan_obstacles")),
    )


def _plan_id(table: str) -> sa.Column[str]:
    reference = sa.ForeignKey(
        "duemq_plans.plan_id", name=op.f(f"fk_{table}_plan_id"), ondelete="CASCADE"
    )
    return sa.Column("plan_id", sa.String(64), reference, nullable=False)


def _runs() -> None:
    op.create_table(
        "duemq_migrations",
        sa.Column("migration_id", sa.String(64), nullable=False),
        sa.Column("plan_id", sa.String(64), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_by", sa.Text(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("migration_id", name=op.f("pk_duemq_migrations")),
    )
    counts = ("updated_ms", "fence", "cursor", "moved", "moved_bytes", "excluded", "routed")
    op.create_table(
        "duemq_levels",
        sa.Column("migration_id", sa.String(64), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in counts),
        sa.Column("given_back", sa.BigInteger(), nullable=False),
        sa.Column("rate_per_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("migration_id", "level", name=op.f("pk_duemq_levels")),
    )
    op.create_table(
        "duemq_events",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("migration_id", sa.String(64), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("level", sa.Integer(), nullable=True),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("mark_offset", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_duemq_events")),
    )
    op.create_index(
        op.f("ix_duemq_events_migration_id_at_ms"), "duemq_events", ["migration_id", "at_ms"]
    )
    op.create_table(
        "duemq_verifications",
        sa.Column("migration_id", sa.String(64), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("levels_count", sa.BigInteger(), nullable=False),
        sa.Column("levels_checksum", sa.String(16), nullable=False),
        sa.Column("timers_count", sa.BigInteger(), nullable=False),
        sa.Column("timers_checksum", sa.String(16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint(
            "migration_id", "level", "at_ms", name=op.f("pk_duemq_verifications")
        ),
    )


def downgrade() -> None:
    raise LedgerOnlyForward(op.get_bind().engine.url.render_as_string(hide_password=True))
