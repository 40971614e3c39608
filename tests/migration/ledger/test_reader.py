"""Reading of a ledger on both databases: written values, errors, and atomic writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from duemq_common.ledger.engine import default_url, make_engine, parse_url
from duemq_common.ledger.errors import (
    LedgerError,
    LedgerOfAnotherStore,
    LedgerUnavailable,
    UnknownRun,
)
from duemq_common.ledger.ledger import TEXT_CHARS_MAX
from duemq_common.ledger.records import LedgerRecord
from duemq_common.ledger.tables import METADATA
from duemq_migration.ledger.reader import MigrationLedger
from duemq_migration.ledger.records import (
    EventRecord,
    LedgerLevel,
    MigrationRecord,
    MigrationRun,
    SampleRecord,
    VerificationRecord,
)
from duemq_migration.ownership.states import State
from duemq_migration.plans.plan import Plan
from tests.duemq_common.ledger import records_of as some
from tests.duemq_common.ledger.conftest import Opener, open_ledger
from tests.duemq_common.ledger.postgres import Server

RUN_ID = some.RUN_ID
RECORDS: tuple[Any, ...] = (
    MigrationRecord,
    LedgerLevel,
    EventRecord,
    VerificationRecord,
    SampleRecord,
)
PLAN = Plan(plan_id="p", store_id="s-1", made_ms=1, made_by="anna")


def test_columns_are_the_fields_of_the_records() -> None:
    for record in RECORDS:
        extra = {"agrees"} if record is VerificationRecord else set()
        table = METADATA.tables[record.TABLE]
        assert set(table.c.keys()) == {f.name for f in fields(record)} | extra
        assert [column.name for column in table.primary_key] == list(record.KEY)


def later(records: list[LedgerRecord]) -> list[Any]:
    """Return the last record of each key."""
    return list({record.identity: record for record in records}.values())


# One database for all examples, each of which begins with empty tables.
@pytest.mark.sampled
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_runs_round_trip(opener: Opener, data: st.DataObject) -> None:
    ledger = opener()
    with ledger.engine.begin() as connection:
        for record in RECORDS:
            connection.execute(METADATA.tables[record.TABLE].delete())
    run = MigrationRun(
        migration=some.migration(plan_id="p", ended_ms=data.draw(some.MAYBE)),
        levels=later(data.draw(st.lists(some.LEVEL_RECORDS, max_size=4))),
        events=later(data.draw(st.lists(some.EVENTS, max_size=4))),
        verifications=later(data.draw(st.lists(some.VERIFICATIONS, max_size=4))),
        samples=later(data.draw(st.lists(some.SAMPLES, max_size=4))),
    )
    ledger.write([*run.levels, *run.events, *run.verifications, *run.samples, run.migration])
    assert ledger.run(RUN_ID) == MigrationRun(
        migration=run.migration,
        levels=sorted(run.levels, key=lambda item: item.level),
        events=sorted(run.events, key=lambda item: (item.at_ms, item.key)),
        verifications=sorted(run.verifications, key=lambda item: (item.at_ms, item.level)),
        samples=sorted(run.samples, key=lambda item: item.at_ms),
    )


@pytest.mark.sampled
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans=st.lists(some.PLANS, min_size=1, max_size=3))
def test_plans_round_trip(opener: Opener, plans: list[Plan]) -> None:
    ledger = opener()
    ledger.write(plans)
    for plan in later(list(plans)):
        assert ledger.plans(plan.plan_id) == [plan]
    assert ledger.plans("none of these") == []


def test_lists_show_the_newest_first(opener: Opener) -> None:
    ledger = opener()
    ledger.write([some.migration(migration_id=str(n), started_ms=n) for n in (2, 3, 1)])
    ledger.write([Plan(plan_id=str(n), store_id="s-1", made_ms=n, made_by="") for n in (2, 3, 1)])
    assert [run.migration_id for run in ledger.migrations()] == ["3", "2", "1"]
    assert [plan.plan_id for plan in ledger.plans()] == ["3", "2", "1"]


def test_a_later_record_replaces_one_with_the_same_key(opener: Opener) -> None:
    ledger = opener()
    ledger.write([some.migration(), some.level(moved=1), some.level(moved=2)])
    assert [level.moved for level in ledger.run(RUN_ID).levels] == [2]
    ledger.write([some.level(moved=5, state=State.DONE)])
    assert ledger.run(RUN_ID).levels == [some.level(moved=5, state=State.DONE)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a\0b", "a\ufffdb"),
        ("half \ud83d", "half ?"),
        ("' OR 1=1; DROP TABLE duemq_plans; --", "' OR 1=1; DROP TABLE duemq_plans; --"),
        ("ü\u2028\U0001f600", "ü\u2028\U0001f600"),
        ("x" * 1_000_000, "x" * TEXT_CHARS_MAX),
    ],
    ids=["NUL", "half a pair", "SQL", "beyond ASCII", "long"],
)
def test_any_text_is_stored(opener: Opener, written: str, read: str) -> None:
    ledger = opener()
    ledger.write([some.migration(started_by=written), some.mark(0, text=written, operator=written)])
    run = ledger.run(RUN_ID)
    assert (run.migration.started_by, run.events[0].text, run.events[0].operator) == (read,) * 3


def test_many_samples_are_merged(opener: Opener) -> None:
    ledger = opener()
    samples = [
        some.sample(
            1_000 * n,
            rate_per_s=float(n),
            delivered=1,
            late_p99_ms=None if n < 100 else n,
        )
        for n in range(1_000)
    ]
    ledger.write([some.migration(), *samples])
    assert ledger.run(RUN_ID, samples_max=1_000).samples == samples
    joined = ledger.run(RUN_ID, samples_max=100).samples
    assert len(joined) == 100
    assert sum(item.delivered for item in joined) == 1_000
    assert joined[0].at_ms == 0
    assert joined[0].rate_per_s == pytest.approx(4.5)
    assert joined[0].late_p99_ms is None
    assert joined[-1].late_p99_ms == 999


def test_a_rebuild_corrects_a_ledger_that_differs_from_the_log(opener: Opener) -> None:
    ledger = opener()
    note = some.mark(9, key="note", mark_offset=None)
    check = VerificationRecord(
        migration_id=RUN_ID,
        level=3,
        at_ms=4,
        levels_count=0,
        levels_checksum=0,
        timers_count=0,
        timers_checksum=0,
    )
    ledger.write([PLAN, some.snapshot(5).levels[0], some.mark(1), some.mark(4), note, check])
    snapshot = some.snapshot(
        3
    )  # a power cut lost records 3 and 4; records 0 and 2 were never written
    for _ in range(2):
        ledger.rebuild(snapshot)
        run = ledger.run(RUN_ID)
        assert run.events == [*snapshot.events, note]
        assert (run.levels, run.migration) == (snapshot.levels, snapshot.migrations[0])
        assert run.verifications == [check]
        assert ledger.plans("p") == [PLAN]


def test_a_rebuild_leaves_what_ownership_records_do_not_contain(opener: Opener) -> None:
    ledger, known = opener(), some.migration(plan_id="p", started_by="anna")
    ledger.write([known, some.level(routed=7, moved=7)])
    ledger.rebuild(
        some.snapshot(0, migrations=[some.migration(started_by="")], levels=[some.level(moved=3)])
    )
    run = ledger.run(RUN_ID)
    assert (run.migration, run.levels) == (known, [some.level(routed=7, moved=3)])


def test_another_stores_ledger_is_refused(opener: Opener) -> None:
    opener("s-1").write([PLAN])
    with pytest.raises(
        LedgerOfAnotherStore, match=r"belongs to store s-1 \(/stores/one\)"
    ) as reported:
        opener("s-2")
    assert "Give the URL of this store's ledger" in str(reported.value)
    assert opener("s-1").plans() == [PLAN]


def test_a_ledger_is_read_without_its_store(url: str, opener: Opener) -> None:
    with pytest.raises(LedgerUnavailable, match=r"no such file|the database is empty"):
        MigrationLedger.open_existing(url)
    opener().write([PLAN])
    assert MigrationLedger.open_existing(url).plans() == [PLAN]


def test_an_unknown_run(opener: Opener) -> None:
    with pytest.raises(UnknownRun, match=r"has no migration x.*migrate history"):
        opener().run("x")


def test_a_refused_batch_changes_nothing(opener: Opener) -> None:
    ledger = opener()
    with pytest.raises(LedgerError, match="refuses a record"):
        ledger.write([some.migration(), some.level(moved=1 << 70)])
    assert ledger.migrations() == []


def test_a_locked_ledger(url: str, opener: Opener) -> None:
    ledger = opener(busy_ms=1)
    with make_engine(parse_url(url)).begin() as other:
        if other.dialect.name == "postgresql":
            other.execute(text("LOCK TABLE duemq_plans IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(LedgerUnavailable, match="lock"):
            ledger.write([PLAN])
    ledger.write([PLAN])
    assert ledger.plans() == [PLAN]


def lose_sqlite(path: Path) -> None:
    path.unlink()


def replace_sqlite(path: Path) -> None:
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").rename(path)


def lose_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("harm", [lose_sqlite, replace_sqlite, lose_directory])
def test_a_removed_file_is_detected(harm: Callable[[Path], None], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()

    def opened() -> MigrationLedger:
        return open_ledger(default_url(store))

    ledger = opened()
    harm(store / "duemq.ledger.sqlite")
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        ledger.write([PLAN])
    store.mkdir(exist_ok=True)
    again = opened()
    again.write([PLAN])
    assert again.plans() == [PLAN]


@pytest.mark.sampled
def test_samples_of_a_long_run_are_thinned_but_keep_their_peaks(
    opener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq_common.ledger.ledger.SAMPLES_KEPT_MAX", 16)
    ledger = opener()
    peak = {3: 70, 41: 900, 77: 80}
    ledger.write([some.migration()])
    for at in range(100):
        ledger.write([replace(some.sample(at), late_max_ms=peak.get(at, at % 3 or None))])
    left = ledger.run(RUN_ID, samples_max=1_000).samples
    assert 8 <= len(left) <= 17
    assert {item.late_max_ms for item in left} >= {900, 80}
    assert left == sorted(left, key=lambda item: item.at_ms)
    last = [item.at_ms for item in left[-3:]]
    assert last[2] - last[1] == last[1] - last[0]  # the newest are close together
    ledger.close()


def test_a_full_disk(tmp_path: Path) -> None:
    url = default_url(tmp_path)
    ledger = open_ledger(url)
    pages_max = [30]

    def limit(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={pages_max[0]}").close()

    event.listen(ledger.engine, "connect", limit)
    notes = [some.mark(n, text="x" * 1_000) for n in range(200)]
    with pytest.raises(LedgerUnavailable, match="full"):
        ledger.write([some.migration(), *notes])
    assert ledger.migrations() == []
    pages_max[0] = 1_000
    ledger.write([some.migration(), *notes])
    assert len(ledger.run(RUN_ID).events) == 200


def test_another_file_instead_of_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "duemq.ledger.sqlite"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(LedgerUnavailable, match="not a database"):
        open_ledger(default_url(tmp_path))
    assert path.read_bytes().startswith(b"this is no database")


def test_a_server_that_is_restarted(postgres: Server) -> None:
    url = postgres.new_database()

    def opened() -> MigrationLedger:
        return open_ledger(url)

    ledger = opened()
    postgres.stop()
    try:
        for use in (opened, lambda: ledger.write([PLAN]), ledger.plans):
            with pytest.raises(LedgerUnavailable, match="Work continues without it"):
                use()
    finally:
        postgres.start()
    ledger.write([PLAN])
    assert ledger.plans() == [PLAN]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nonsense", "its URL is malformed"),
        ("mysql://u:secret@h/d", r"mysql://u:\*\*\*@h/d: this kind of database is not supported"),
        ("sqlite://", "not supported"),
        ("sqlite:///:memory:", "not supported"),
    ],
)
def test_unusable_urls(url: str, why: str) -> None:
    with pytest.raises(LedgerError, match=why) as reported:
        open_ledger(url)
    assert "Use sqlite:" in str(reported.value)
    assert "secret" not in str(reported.value)


def test_a_password_is_never_shown() -> None:
    url = "postgres://anna:secret@127.0.0.1:1/books"
    with pytest.raises(LedgerUnavailable, match="postgresql://anna") as reported:
        open_ledger(url)
    assert "secret" not in str(reported.value)
