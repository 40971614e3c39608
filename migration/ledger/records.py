"""Records of the ledger: plain values, without SQL.

A record replaces the one with the same key, so that writing it twice does no harm. Keys: a plan's
id, a migration's id, (migration, level), an event's key, (migration, level, moment) of a
verification, (migration, moment) of a sample. What marks do not tell is not wiped by a rebuild: an
empty plan or starter, or a smaller count of routed messages, leaves what the ledger has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from migration.ownership.states import State
from migration.plans.plan import Plan

LIVE, OFFLINE = "live", "offline"
CHECKSUM_LIMIT: Final = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRecord:
    """One run.

    Attributes:
        plan_id: the plan it follows, "" when that is not known any more.
        mode: `live` or `offline`.
        ended_ms: when its last level was done or back, None while one is on its way.
    """

    migration_id: str
    plan_id: str = ""
    mode: str = LIVE
    started_ms: int
    started_by: str = ""
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRecord:
    """Where one level stands.

    Attributes:
        fence: queue offset of the level's queue behind which new messages are timers.
        cursor: queue offset of the level's queue up to which everything was handed over.
        moved: messages handed over to the timers, those given back included.
        moved_bytes: bytes of their timer units.
        excluded: messages of the range that were settled ahead: cancelled, moved.
        routed: new messages stored as timers.
        given_back: messages that went back to the level.
        rate_per_s: messages handed over or given back a second, lately.
        cause: why it is paused, "" when it is not.
    """

    migration_id: str
    level: int
    state: State
    updated_ms: int
    fence: int = 0
    cursor: int = 0
    moved: int = 0
    moved_bytes: int = 0
    excluded: int = 0
    routed: int = 0
    given_back: int = 0
    rate_per_s: float = 0.0
    paused: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something that happened, and who wanted it.

    Attributes:
        key: tells it from all others; `mark_key(offset)` if a mark in the log says it.
        level: None: it concerns all of them.
        kind: `route`, `handover`, `giveback`, `state`; or `throttle`, `window`, `note`, ...
        mark_offset: queue offset of its mark in DUEMQ_MIGRATION, None if it has none.
    """

    key: str
    migration_id: str
    at_ms: int
    kind: str
    level: int | None = None
    who: str = ""
    text: str = ""
    mark_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRecord:
    """One comparison of both sides of a level.

    Attributes:
        levels_count: messages that left the level.
        levels_checksum: their order-independent checksum, 64 bits without sign.
        timers_count: messages that came to the timers.
        text: what differs, "" when nothing does.
    """

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
        """Whether both sides tell the same."""
        return (self.levels_count, self.levels_checksum) == (
            self.timers_count,
            self.timers_checksum,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """Rate and lateness over the last seconds, also before and after the run.

    Attributes:
        rate_per_s: messages handed over or given back a second.
        delivered: delayed messages delivered in that time.
        late_p50_ms: their lateness; None when none was delivered.
        batch_units: what the throttle allowed a step.
        pause_ms: how long it rested between two steps.
    """

    migration_id: str
    at_ms: int
    rate_per_s: float = 0.0
    delivered: int = 0
    late_p50_ms: int | None = None
    late_p99_ms: int | None = None
    late_max_ms: int | None = None
    batch_units: int = 0
    pause_ms: int = 0


Record = Plan | MigrationRecord | LevelRecord | EventRecord | VerificationRecord | SampleRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """All that the log and its fold (`config/duemq.migration.json`) know of migrations.

    What the ledger is rebuilt of. Marks that retention removed are missing in `events`; what they
    came to stands in `levels` all the same.

    Attributes:
        events: one for each mark that is still in the log, with its `mark_offset`.
        next_mark: queue offset behind the last mark; an event of a mark behind it never was (a
            power cut took it), and leaves the ledger.
    """

    next_mark: int

    migrations: list[MigrationRecord] = field(default_factory=list)
    levels: list[LevelRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)

    def records(self) -> list[Record]:
        """Return everything, in the order in which it is written."""
        return [*self.migrations, *self.levels, *self.events]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One migration as the ledger tells it, each list in the order of time or of levels."""

    migration: MigrationRecord
    plan: Plan | None = None
    levels: list[LevelRecord] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    verifications: list[VerificationRecord] = field(default_factory=list)
    samples: list[SampleRecord] = field(default_factory=list)


def renewed(old: Record, new: Record) -> Record:
    """Return a record that replaces an older one with its key; what marks do not tell stays."""
    if isinstance(old, MigrationRecord) and isinstance(new, MigrationRecord):
        return replace(
            new,
            plan_id=new.plan_id or old.plan_id,
            started_by=new.started_by or old.started_by,
        )
    if isinstance(old, LevelRecord) and isinstance(new, LevelRecord):
        return replace(new, routed=max(old.routed, new.routed))
    return new


def mark_key(mark_offset: int) -> str:
    """Return the key of the event that a mark tells of."""
    return f"mark {mark_offset}"
