"""The projection of migration records into a ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.ownership import (
    JournalEntry,
    OwnershipRecord,
    Return,
    Route,
    StateRecord,
    Transfer,
)
from delayed_delivery.ownership_projection import JournalProjection
from duemq_migration.ledger.projection import STEPS_MS, LedgerProjection, event_of
from duemq_migration.ledger.records import EventRecord, LedgerLevel, MigrationRecord
from duemq_migration.ownership.states import State
from tests.duemq_common.ledger.conftest import Opener

START_MS = 1_000


def state(source: str, target: str, level: int = 3, **values: Any) -> StateRecord:
    return StateRecord(migration="r", level=level, source=source, target=target, **values)


RECORDS: list[OwnershipRecord] = [
    state("planned", "routing", operator="anna", why="Friday"),
    Route(migration="r", level=3, on=True, fence=100, rules={"orders": 5_000}),
    state("routing", "draining"),
    Transfer(migration="r", level=3, first=10, end=60, excluded=((20, 25), (30, 31)), count=44),
    state("draining", "draining", operator="bert", why="lunch"),
    state("draining", "draining", operator="bert"),
    Transfer(migration="r", level=3, first=60, end=100, count=40),
    state("draining", "verifying"),
    state("verifying", "done"),
]


def project(marks: list[OwnershipRecord]) -> LedgerProjection:
    projection = LedgerProjection()
    for at, record in enumerate(marks):
        projection.apply(entry(at, record))
    return projection


def entry(at: int, record: OwnershipRecord) -> JournalEntry:
    return JournalEntry(at, 4_096 * at, START_MS + at, record)


def test_a_whole_run() -> None:
    snapshot = project(RECORDS).snapshot()
    assert snapshot.next_record == len(snapshot.events) == len(RECORDS)
    assert snapshot.migrations == [
        MigrationRecord(migration_id="r", started_ms=1_000, started_by="anna", ended_ms=1_008)
    ]
    assert snapshot.levels == [
        LedgerLevel(
            migration_id="r",
            level=3,
            state=State.DONE,
            updated_ms=1_008,
            fence=100,
            cursor=100,
            moved=84,
            moved_bytes=84 * 52,
            excluded=6,
        )
    ]


def test_texts_of_steps() -> None:
    assert [event.text for event in project(RECORDS).snapshot().events] == [
        "planned -> routing: Friday",
        "new messages are timers, fence 100; orders: 5000 ms",
        "routing -> draining",
        "44 of [10, 60), 6 settled before",
        "paused: lunch",
        "resumed",
        "40 of [60, 100)",
        "draining -> verifying",
        "verifying -> done",
    ]
    assert event_of(entry(4, RECORDS[4])) == EventRecord(
        key="mark 4",
        migration_id="r",
        at_ms=1_004,
        kind="state",
        level=3,
        operator="bert",
        text="paused: lunch",
        mark_offset=4,
    )


def test_consecutive_steps_are_one_event() -> None:
    steps: list[OwnershipRecord] = [
        Transfer(migration="r", level=3, first=at, end=at + 10, excluded=((at, at + 1),), count=9)
        for at in range(0, 1_000, 10)
    ]
    backs: list[OwnershipRecord] = [
        Return(migration="r", level=3, first=at, end=at + 10, pending=(), count=5)
        for at in range(0, 30, 10)
    ]
    other = Transfer(migration="r", level=4, first=0, end=7, count=7)
    gap = Transfer(migration="r", level=3, first=2_000, end=2_001, count=1)
    projection = LedgerProjection()
    for at, record in enumerate([*steps[:50], other, *steps[50:], gap, *backs]):
        event = projection.apply(entry(at, record))[-1]
        assert isinstance(event, EventRecord)
    events = projection.snapshot().events
    assert [(event.text, event.mark_offset) for event in events] == [
        ("900 of [0, 1000), 100 settled before, 100 steps", 0),
        ("7 of [0, 7)", 50),
        ("1 of [2000, 2001)", 101),
        ("15 messages, 3 steps", 102),
    ]
    assert event == events[-1]


def test_steps_of_a_long_run_are_several_events() -> None:
    projection = LedgerProjection()
    for at in range(100):
        record = Transfer(migration="r", level=3, first=at, end=at + 1, count=1)
        projection.apply(JournalEntry(at, at, at * STEPS_MS // 10, record))
    assert [event.mark_offset for event in projection.snapshot().events] == list(range(0, 100, 10))


@pytest.mark.parametrize(("count", "paused"), [(4, False), (5, True), (6, False)])
def test_a_pause_and_its_cause(count: int, paused: bool) -> None:
    level = project(RECORDS[:count]).snapshot().levels[0]
    assert (level.state, level.paused, level.cause) == (
        State.DRAINING,
        paused,
        "lunch" if paused else "",
    )


def test_a_run_ends_with_its_last_level_and_continues_with_a_rollback() -> None:
    projection = project([*RECORDS[:8], state("planned", "routing", level=5), RECORDS[8]])
    assert projection.snapshot().migrations[0].ended_ms is None
    projection.apply(entry(10, state("routing", "rolling_back", level=5)))
    projection.apply(entry(11, state("rolling_back", "rolled_back", level=5)))
    assert projection.snapshot().migrations[0].ended_ms == START_MS + 11
    projection.apply(entry(12, state("done", "rolling_back")))
    assert projection.snapshot().migrations[0].ended_ms is None
    back = Return(migration="r", level=3, first=10, end=100, pending=((50, 90),), count=40)
    projection.apply(entry(13, back))
    projection.apply(entry(14, Route(migration="r", level=3, on=False)))
    snapshot = projection.snapshot()
    assert [level.returned for level in snapshot.levels] == [40, 0]
    assert [event.text for event in snapshot.events[-2:]] == ["40 messages", "as before"]


@given(st.integers(0, len(RECORDS)), st.integers(0, len(RECORDS)))
def test_known_ownership_records_change_nothing(stop: int, again: int) -> None:
    projection = project(RECORDS[:stop])
    for at in range(min(again, stop), len(RECORDS)):
        assert bool(projection.apply(entry(at, RECORDS[at]))) == (at >= stop)
    assert projection.snapshot() == project(RECORDS).snapshot()


@given(st.integers(1, len(RECORDS)))
def test_a_start_continues_from_the_projection_of_removed_records(stop: int) -> None:
    journal = JournalProjection()
    for at, record in enumerate(RECORDS[:stop]):
        journal = journal.after(entry(at, record))
    projection = LedgerProjection(journal)
    for at in range(len(RECORDS)):
        assert bool(projection.apply(entry(at, RECORDS[at]))) == (at >= stop)
    found, whole = projection.snapshot(), project(RECORDS).snapshot()
    unknown = {"excluded": 0}  # not counted by the projection of the journal
    assert [replace(level, **unknown) for level in found.levels] == [
        replace(level, **unknown, updated_ms=found.levels[0].updated_ms) for level in whole.levels
    ]
    assert [event.text for event in found.events] == [event.text for event in whole.events[stop:]]


def test_the_transferred_end_remains_after_a_rollback() -> None:
    off = Route(migration="r", level=3, on=False)
    projection = project([*RECORDS, off, state("done", "rolling_back")])
    assert projection.snapshot().levels[0].fence == 100


def test_changed_rows_are_those_the_ledger_lacks(opener: Opener) -> None:
    ledger, projection = opener(), LedgerProjection()
    for at, record in enumerate(RECORDS):
        ledger.write(projection.apply(entry(at, record)))
    run, snapshot = ledger.run("r"), projection.snapshot()
    assert ([run.migration], run.levels, run.events) == (
        snapshot.migrations,
        snapshot.levels,
        snapshot.events,
    )
