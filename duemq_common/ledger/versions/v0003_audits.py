"""Audits: a row for each run, and the number of messages by verdict."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from duemq_common.ledger.errors import LedgerOnlyForward

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "duemq_audits",
        sa.Column("audit_id", sa.String(64), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("stores", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("late_limit_ms", sa.BigInteger(), nullable=False),
        sa.Column("late_p50_ms", sa.BigInteger(), nullable=True),
        sa.Column("late_p99_ms", sa.BigInteger(), nullable=True),
        sa.Column("late_max_ms", sa.BigInteger(), nullable=True),
        sa.Column("unread", sa.BigInteger(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_duemq_audits")),
    )
    op.create_index(op.f("ix_duemq_audits_started_ms"), "duemq_audits", ["started_ms"])
    audit = sa.ForeignKey(
        "duemq_audits.audit_id", name=op.f("fk_duemq_audit_verdicts_audit_id"), ondelete="CASCADE"
    )
    op.create_table(
        "duemq_audit_verdicts",
        sa.Column("audit_id", sa.String(64), audit, nullable=False),
        sa.Column("verdict", sa.String(32), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", "verdict", name=op.f("pk_duemq_audit_verdicts")),
    )


def downgrade() -> None:
    raise LedgerOnlyForward(op.get_bind().engine.url.render_as_string(hide_password=True))
