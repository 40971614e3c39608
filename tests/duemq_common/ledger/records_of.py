"""Records for ledger tests, fixed and random."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from duemq_migration.ledger.records import (
    CHECKSUM_LIMIT,
    EventRecord,
    LedgerLevel,
    LedgerSnapshot,
    MigrationRecord,
    SampleRecord,
    VerificationRecord,
    record_key,
)
from duemq_migration.ownership.states import State
from duemq_migration.plans.plan import Obstacle, Plan, PlannedLevel

RUN_ID = "run-20261121-163000-1f2e"


def migration(**changes: Any) -> MigrationRecord:
    values = {"migration_id": RUN_ID, "started_ms": 1_000, "started_by": "anna"}
    return MigrationRecord(**(values | changes))


def level(number: int = 3, **changes: Any) -> LedgerLevel:
    values = {"migration_id": RUN_ID, "level": number, "state": State.DRAINING, "updated_ms": 2}
    return LedgerLevel(**(values | changes))


def mark(offset: int, **changes: Any) -> EventRecord:
    values = {
        "key": record_key(offset),
        "migration_id": RUN_ID,
        "at_ms": 1_000 + offset,
        "kind": "handover",
        "level": 3,
        "mark_offset": offset,
    }
    return EventRecord(**(values | changes))


def sample(at_ms: int, **changes: Any) -> SampleRecord:
    return SampleRecord(**({"migration_id": RUN_ID, "at_ms": at_ms} | changes))


def snapshot(marks: int = 2, **changes: Any) -> LedgerSnapshot:
    values: dict[str, Any] = {
        "next_record": marks,
        "migrations": [migration()],
        "levels": [level(moved=marks)],
        "events": [mark(offset) for offset in range(marks)],
    }
    return LedgerSnapshot(**(values | changes))


IDS = st.text("abcdefghij-0123456789", min_size=1, max_size=64)
COUNTS = st.integers(0, 2**63 - 1)
MAYBE = st.none() | COUNTS
RATES = st.floats(0, 1e9)
CHECKSUMS = st.integers(0, CHECKSUM_LIMIT - 1)
LEVELS = st.integers(1, 2**31 - 1)
PLAIN = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
WORDS = st.text(PLAIN, max_size=20)

PLANS = st.builds(
    Plan,
    plan_id=IDS,
    store_id=IDS,
    made_ms=COUNTS,
    made_by=WORDS,
    log_end=COUNTS,
    levels=st.lists(
        st.builds(
            PlannedLevel,
            level=LEVELS,
            delay_ms=COUNTS,
            pending=COUNTS,
            pending_bytes=COUNTS,
            first_due_ms=MAYBE,
            last_due_ms=MAYBE,
            overdue=COUNTS,
            unit_bytes=COUNTS,
            estimate_ms=COUNTS,
        ),
        max_size=3,
        unique_by=lambda planned: planned.level,
    ).map(lambda some: sorted(some, key=lambda planned: planned.level)),
    obstacles=st.lists(
        st.builds(Obstacle, level=st.none() | LEVELS, count=COUNTS, text=WORDS), max_size=3
    ),
)
LEVEL_RECORDS = st.builds(
    LedgerLevel,
    migration_id=st.just(RUN_ID),
    level=LEVELS,
    state=st.sampled_from(State),
    updated_ms=COUNTS,
    fence=COUNTS,
    cursor=COUNTS,
    moved=COUNTS,
    moved_bytes=COUNTS,
    excluded=COUNTS,
    routed=COUNTS,
    returned=COUNTS,
    rate_per_s=RATES,
    cause=WORDS,
)
EVENTS = st.builds(
    EventRecord,
    key=IDS,
    migration_id=st.just(RUN_ID),
    at_ms=COUNTS,
    kind=st.sampled_from(["route", "handover", "note"]),
    level=st.none() | LEVELS,
    operator=WORDS,
    text=WORDS,
    mark_offset=MAYBE,
)
VERIFICATIONS = st.builds(
    VerificationRecord,
    migration_id=st.just(RUN_ID),
    level=LEVELS,
    at_ms=COUNTS,
    levels_count=COUNTS,
    levels_checksum=CHECKSUMS,
    timers_count=COUNTS,
    timers_checksum=CHECKSUMS,
    text=WORDS,
)
SAMPLES = st.builds(
    SampleRecord,
    migration_id=st.just(RUN_ID),
    at_ms=COUNTS,
    rate_per_s=RATES,
    delivered=COUNTS,
    late_p50_ms=MAYBE,
    late_p99_ms=MAYBE,
    late_max_ms=MAYBE,
    batch_units=COUNTS,
    pause_ms=COUNTS,
)
