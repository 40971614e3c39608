"""The ledger's tables. A change here needs a migration in `versions/`; a test compares them.

Columns have the names of the records' fields (migration/ledger/records.py,
reconciliation/jobs/audit_ledger.py). All times are ms since the epoch. Only the parts of a plan and
of an audit refer to another row: records that are rebuilt from the log come in any order.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

VERSION_TABLE = "duemq_ledger_version"
ID_CHARS_MAX = 64
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Hex64(TypeDecorator[int]):
    """64 bits without sign, as 16 hexadecimal digits: SQL's integers have a sign."""

    impl = String(16)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> str | None:
        return None if value is None else f"{value:016x}"

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        return None if value is None else int(value, 16)


class Base(DeclarativeBase):
    """All tables of the ledger."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012  (read by SQLAlchemy)
        bool: Boolean(),
        float: Double(),
        int: BigInteger(),
        str: Text(),
    }


def id_column(*args: Any, primary_key: bool = False) -> Mapped[str]:
    """Return a column for an id."""
    return mapped_column(String(ID_CHARS_MAX), *args, primary_key=primary_key)


class IdentityRow(Base):
    """The one row that says whose ledger this is."""

    __tablename__ = "duemq_identity"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    store_id: Mapped[str] = id_column()
    store_path: Mapped[str]
    made_ms: Mapped[int]


class PlanRow(Base):
    __tablename__ = "duemq_plans"

    plan_id: Mapped[str] = id_column(primary_key=True)
    store_id: Mapped[str] = id_column()
    made_ms: Mapped[int]
    made_by: Mapped[str]
    log_end: Mapped[int]


class PlannedLevelRow(Base):
    __tablename__ = "duemq_plan_levels"

    plan_id: Mapped[str] = id_column(
        ForeignKey("duemq_plans.plan_id", ondelete="CASCADE"), primary_key=True
    )
    level: Mapped[int] = mapped_column(Integer, primary_key=True)
    delay_ms: Mapped[int]
    pending: Mapped[int]
    pending_bytes: Mapped[int]
    first_due_ms: Mapped[int | None]
    last_due_ms: Mapped[int | None]
    overdue: Mapped[int]
    unit_bytes: Mapped[int]
    estimate_ms: Mapped[int]


class ObstacleRow(Base):
    __tablename__ = "duemq_plan_obstacles"

    plan_id: Mapped[str] = id_column(
        ForeignKey("duemq_plans.plan_id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    level: Mapped[int | None] = mapped_column(Integer)
    count: Mapped[int]
    text: Mapped[str]
    blocks: Mapped[bool]


class MigrationRow(Base):
    __tablename__ = "duemq_migrations"

    migration_id: Mapped[str] = id_column(primary_key=True)
    plan_id: Mapped[str] = id_column()
    mode: Mapped[str] = mapped_column(String(16))
    started_ms: Mapped[int]
    started_by: Mapped[str]
    ended_ms: Mapped[int | None]


class LevelRow(Base):
    __tablename__ = "duemq_levels"

    migration_id: Mapped[str] = id_column(primary_key=True)
    level: Mapped[int] = mapped_column(Integer, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    updated_ms: Mapped[int]
    fence: Mapped[int]
    cursor: Mapped[int]
    moved: Mapped[int]
    moved_bytes: Mapped[int]
    excluded: Mapped[int]
    routed: Mapped[int]
    given_back: Mapped[int]
    rate_per_s: Mapped[float]
    paused: Mapped[bool]
    cause: Mapped[str]


class EventRow(Base):
    __tablename__ = "duemq_events"
    __table_args__ = (Index(None, "migration_id", "at_ms"),)

    key: Mapped[str] = id_column(primary_key=True)
    migration_id: Mapped[str] = id_column()
    at_ms: Mapped[int]
    kind: Mapped[str] = mapped_column(String(32))
    level: Mapped[int | None] = mapped_column(Integer)
    who: Mapped[str]
    text: Mapped[str]
    mark_offset: Mapped[int | None]


class VerificationRow(Base):
    __tablename__ = "duemq_verifications"

    migration_id: Mapped[str] = id_column(primary_key=True)
    level: Mapped[int] = mapped_column(Integer, primary_key=True)
    at_ms: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    levels_count: Mapped[int]
    levels_checksum: Mapped[int] = mapped_column(Hex64)
    timers_count: Mapped[int]
    timers_checksum: Mapped[int] = mapped_column(Hex64)
    agrees: Mapped[bool]
    text: Mapped[str]


class SampleRow(Base):
    __tablename__ = "duemq_samples"

    migration_id: Mapped[str] = id_column(primary_key=True)
    at_ms: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    rate_per_s: Mapped[float]
    delivered: Mapped[int]
    late_p50_ms: Mapped[int | None]
    late_p99_ms: Mapped[int | None]
    late_max_ms: Mapped[int | None]
    batch_units: Mapped[int]
    pause_ms: Mapped[int]


class AuditRow(Base):
    """An audit by Spark, also one that could not run."""

    __tablename__ = "duemq_audits"
    __table_args__ = (Index(None, "started_ms"),)

    audit_id: Mapped[str] = id_column(primary_key=True)
    started_ms: Mapped[int]
    ended_ms: Mapped[int]
    made_by: Mapped[str]
    stores: Mapped[str]
    exit_code: Mapped[int] = mapped_column(Integer)
    complete: Mapped[bool]
    messages: Mapped[int]
    late_limit_ms: Mapped[int]
    late_p50_ms: Mapped[int | None]
    late_p99_ms: Mapped[int | None]
    late_max_ms: Mapped[int | None]
    unread: Mapped[int]
    why: Mapped[str]


class AuditVerdictRow(Base):
    """How many messages of an audit have a verdict."""

    __tablename__ = "duemq_audit_verdicts"

    audit_id: Mapped[str] = id_column(
        ForeignKey("duemq_audits.audit_id", ondelete="CASCADE"), primary_key=True
    )
    verdict: Mapped[str] = mapped_column(String(32), primary_key=True)
    messages: Mapped[int]
