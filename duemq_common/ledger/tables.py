"""Tables of the ledger. A change here needs another version in `schema.py`.

Columns have the names of the records' fields (`duemq_migration.ledger.records`,
`duemq_migration.plans.plan`, `spark_reconciliation.jobs.audit_ledger`). All times are in ms since
the epoch. Only dependent rows of plans and audits have foreign keys, because records that are
rebuilt from the log come in any order.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.types import TypeEngine

METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class Hex64(TypeDecorator[int]):
    """Unsigned 64 bits as 16 hexadecimal digits, because SQL integers are signed."""

    impl = String(16)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else f"{value:016x}"

    def process_result_value(self, value: str | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value, 16)


Columns = list[Column[Any]]


def _columns(kind: TypeEngine[Any], names: str, *, null: bool = False) -> Columns:
    """Return columns; `column=field` if the field of the records has another name."""
    pairs = ((word.split("=")[0], word.split("=")[-1]) for word in names.split())
    return [Column(name, kind, key=field, nullable=null) for name, field in pairs]


def _key(kind: TypeEngine[Any], name: str, *rest: ForeignKey) -> Columns:
    return [Column(name, kind, *rest, primary_key=True, autoincrement=False)]


def _part_of(table: str, key: str) -> Columns:
    return _key(ID, key, ForeignKey(f"{table}.{key}", ondelete="CASCADE"))


ID, WORD, MODE, NUMBER = String(64), String(32), String(16), BigInteger()

VERSIONS: Final = Table(
    "duemq_ledger_version",
    METADATA,
    *_key(WORD, "version_num"),
)
IDENTITY: Final = Table(
    "duemq_identity",
    METADATA,
    *_key(Integer(), "id"),
    *_columns(ID, "store_id"),
    *_columns(Text(), "store_path"),
    *_columns(NUMBER, "made_ms"),
    CheckConstraint("id = 1", name="one_row"),
)
PLANS: Final = Table(
    "duemq_plans",
    METADATA,
    *_key(ID, "plan_id"),
    *_columns(ID, "store_id"),
    *_columns(NUMBER, "made_ms log_end"),
    *_columns(Text(), "made_by"),
)
PLAN_LEVELS: Final = Table(
    "duemq_plan_levels",
    METADATA,
    *_part_of("duemq_plans", "plan_id"),
    *_key(Integer(), "level"),
    *_columns(NUMBER, "delay_ms pending pending_bytes overdue unit_bytes estimate_ms"),
    *_columns(NUMBER, "first_due_ms last_due_ms", null=True),
)
PLAN_OBSTACLES: Final = Table(
    "duemq_plan_obstacles",
    METADATA,
    *_part_of("duemq_plans", "plan_id"),
    *_key(Integer(), "position"),
    *_columns(WORD, "kind"),
    *_columns(Integer(), "level", null=True),
    *_columns(NUMBER, "count"),
    *_columns(Text(), "text"),
    *_columns(Boolean(), "blocks"),
)
MIGRATIONS: Final = Table(
    "duemq_migrations",
    METADATA,
    *_key(ID, "migration_id"),
    *_columns(ID, "plan_id"),
    *_columns(MODE, "mode"),
    *_columns(NUMBER, "started_ms"),
    *_columns(NUMBER, "ended_ms", null=True),
    *_columns(Text(), "started_by"),
)
LEVELS: Final = Table(
    "duemq_levels",
    METADATA,
    *_key(ID, "migration_id"),
    *_key(Integer(), "level"),
    *_columns(MODE, "state"),
    *_columns(
        NUMBER, "updated_ms fence cursor moved moved_bytes excluded routed given_back=returned"
    ),
    *_columns(Double(), "rate_per_s"),
    *_columns(Boolean(), "paused"),
    *_columns(Text(), "cause"),
)
EVENTS: Final = Table(
    "duemq_events",
    METADATA,
    *_key(ID, "key"),
    *_columns(ID, "migration_id"),
    *_columns(NUMBER, "at_ms"),
    *_columns(WORD, "kind"),
    *_columns(Integer(), "level", null=True),
    *_columns(Text(), "who=operator text"),
    *_columns(NUMBER, "mark_offset", null=True),
    Index(None, "migration_id", "at_ms"),
)
VERIFICATIONS: Final = Table(
    "duemq_verifications",
    METADATA,
    *_key(ID, "migration_id"),
    *_key(Integer(), "level"),
    *_key(NUMBER, "at_ms"),
    *_columns(NUMBER, "levels_count timers_count"),
    *_columns(Hex64(), "levels_checksum timers_checksum"),
    *_columns(Boolean(), "agrees"),
    *_columns(Text(), "text"),
)
SAMPLES: Final = Table(
    "duemq_samples",
    METADATA,
    *_key(ID, "migration_id"),
    *_key(NUMBER, "at_ms"),
    *_columns(Double(), "rate_per_s"),
    *_columns(NUMBER, "delivered batch_units pause_ms"),
    *_columns(NUMBER, "late_p50_ms late_p99_ms late_max_ms", null=True),
)
AUDITS: Final = Table(
    "duemq_audits",
    METADATA,
    *_key(ID, "audit_id"),
    *_columns(NUMBER, "started_ms ended_ms messages late_limit_ms unread"),
    *_columns(NUMBER, "late_p50_ms late_p99_ms late_max_ms", null=True),
    *_columns(Integer(), "exit_code"),
    *_columns(Boolean(), "complete"),
    *_columns(Text(), "made_by stores why"),
    Index(None, "started_ms"),
)
AUDIT_VERDICTS: Final = Table(
    "duemq_audit_verdicts",
    METADATA,
    *_part_of("duemq_audits", "audit_id"),
    *_key(WORD, "verdict"),
    *_columns(NUMBER, "messages"),
)
AUDIT_FINDINGS: Final = Table(
    "duemq_audit_findings",
    METADATA,
    *_part_of("duemq_audits", "audit_id"),
    *_key(Integer(), "position"),
    *_columns(WORD, "verdict"),
    *_columns(Text(), "why topic unique_id"),
    *_columns(NUMBER, "due_ms delivered_ms root alike", null=True),
)
