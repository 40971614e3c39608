"""Records of migrations in the ledger, and one run with all its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from duemq_common.ledger.records import LedgerRecord
from duemq_migration.plans.plan import Plan

LIVE, OFFLINE = "live", "offline"
CHECKSUM_LIMIT: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRecord(LedgerRecord):
    """One run of a migration.

    Attributes:
        plan_id: Plan that it follows, "" if unknown.
        mode: `live` or `offline`.
        ended_ms: Time at which its last level ended, None before.
    """

    TABLE = "duemq_migrations"
    KEY = ("migration_id",)
    KEPT = ("plan_id", "started_by")

    migration_id: str
    plan_id: str = ""
    mode: str = LIVE
    started_ms: int
    started_by: str = ""
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLevel(LedgerRecord):
    """State and progress of one level.

    Attributes:
        state: A `duemq_migration.ownership.states.State`.
        fence: Offset in the level's queue from which on new messages are timers.
        cursor: Offset in the level's queue up to which all messages were transferred.
        moved: Messages transferred to the timers, including those returned later.
        moved_bytes: Bytes of their timer units.
        excluded: Messages of the range that were cancelled or moved before the transfer.
        routed: New messages stored as timers.
        returned: Messages returned to the level.
        rate_per_s: Recent messages transferred or returned per second.
        cause: Cause of the pause, "" if it is not paused.
    """

    TABLE = "duemq_levels"
    KEY = ("migration_id", "level")
    KEPT = ("routed",)

    migration_id: str
    level: int
    state: str
    updated_ms: int
    fence: int = 0
    cursor: int = 0
    moved: int = 0
    moved_bytes: int = 0
    excluded: int = 0
    routed: int = 0
    returned: int = 0
    rate_per_s: float = 0.0
    paused: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord(LedgerRecord):
    """Event of a run, with the operator who caused it.

    Attributes:
        key: Unique key; `record_key(offset)` for an ownership record.
        level: None for all levels.
        kind: `route`, `handover`, `giveback`, `state`; or `throttle`, `window`, `note`, ...
        mark_offset: Queue offset of its ownership record, None without one.
    """

    TABLE = "duemq_events"
    KEY = ("key",)

    key: str
    migration_id: str
    at_ms: int
    kind: str
    level: int | None = None
    operator: str = ""
    text: str = ""
    mark_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRecord(LedgerRecord):
    """Comparison of the transferred messages of a level with its timers.

    Attributes:
        levels_count: Messages that the level transferred.
        levels_checksum: Their checksum, unsigned 64 bits.
        timers_count: Messages that the timers own or settled.
        timers_checksum: Their checksum.
        text: Difference, "" without one.
    """

    TABLE = "duemq_verifications"
    KEY = ("migration_id", "level", "at_ms")

    migration_id: str
    level: int
    at_ms: int
    levels_count: int
    levels_checksum: int
    timers_count: int
    timers_checksum: int
    text: str = ""

    def __post_init__(self) -> None:
        assert 0 <= self.levels_checksum < CHECKSUM_LIMIT
        assert 0 <= self.timers_checksum < CHECKSUM_LIMIT

    @property
    def agrees(self) -> bool:
        """Whether counts and checksums are equal."""
        return (self.levels_count, self.levels_checksum) == (
            self.timers_count,
            self.timers_checksum,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(LedgerRecord):
    """Rate and lateness over the last seconds, also before and after the run.

    Attributes:
        rate_per_s: Messages transferred or returned per second.
        delivered: Number of delayed messages delivered in those seconds.
        late_p50_ms: Median of their lateness, in ms; None without deliveries.
        batch_units: Units that the throttle allowed per step.
        pause_ms: Pause between two steps, in ms.
    """

    TABLE = "duemq_samples"
    KEY = ("migration_id", "at_ms")
    EXPENDABLE = True

    migration_id: str
    at_ms: int
    rate_per_s: float = 0.0
    delivered: int = 0
    late_p50_ms: int | None = None
    late_p99_ms: int | None = None
    late_max_ms: int | None = None
    batch_units: int = 0
    pause_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSnapshot:
    """All records of migrations in the log and its projection (`config/duemq.migration.json`).

    Events of ownership records that retention removed are missing; `levels` include their effect.

    Attributes:
        next_record: Queue offset after the last ownership record. The ledger deletes events of
            later records, which a power cut lost.
        events: Events of the ownership records in the log.
    """

    next_record: int

    migrations: list[MigrationRecord] = field(default_factory=list)
    levels: list[LedgerLevel] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)

    def records(self) -> list[LedgerRecord]:
        """Return all records in writing order."""
        return [*self.migrations, *self.levels, *self.events]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRun:
    """Run with all its records; lists are sorted by time or by level."""

    migration: MigrationRecord
    plan: Plan | None = None
    levels: list[LedgerLevel] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    verifications: list[VerificationRecord] = field(default_factory=list)
    samples: list[SampleRecord] = field(default_factory=list)


def record_key(mark_offset: int) -> str:
    """Return the key of the event of an ownership record."""
    return f"mark {mark_offset}"
