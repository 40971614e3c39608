"""Jobs, proofs and watches on Spark, in the session of `test_verdicts`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame

from duemq_common.clock import FakeClock
from duemq_migration.plans.plan import PlannedLevel
from message_store import layout
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.migration_proof import (
    DRAINED,
    ROUTED,
    migration_proof,
    proof_totals,
)
from spark_reconciliation.audit.rules import CLEAN
from spark_reconciliation.jobs import jobs
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.jobs.watch import Watch, WatchConfig
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.spark.read import audit_stores, count_stores, read_table
from tests.migration.plans.test_counting import plan_of
from tests.migration.steps.test_drain import fill
from tests.spark_reconciliation.conftest import FOR_FEW_ROWS
from tests.spark_reconciliation.log_bytes import Log
from tests.support.migration_rig import MigrationRig
from tests.support.planted_faults import SMALL_FILE_BYTES, plant
from tests.support.read_tables import read_rows

VERDICT = {
    "store": "string",
    "root": "bigint",
    "leaf": "bigint",
    "topic": "string",
    "queue_id": "bigint",
    "unique_id": "string",
    "level": "bigint",
    "store_ms": "bigint",
    "due_ms": "bigint",
    "delivered_phys": "bigint",
    "delivered_ms": "bigint",
    "late_ms": "bigint",
    "hops": "bigint",
    "deliveries": "bigint",
    "verdict": "string",
    "why": "string",
}
MINUTE_MS, DAY_MS = jobs.MINUTE_MS, jobs.DAY_MS
START_MS = 1_700_006_400_000  # a whole day
FEW, PIECES = 100_000, 64
FAULTS_EACH = 10_000  # number of messages for each fault of a kind and holder
ENDED_S = 300  # a watch of a small store ends within seconds
PROOF = ("store", "phys_offset", "topic", "queue_offset", "level", "due_ms", "body")


def verdicts_of(engine: Any, *rows: dict[str, Any]) -> DataFrame:
    """Return a frame of verdicts; missing fields are null."""
    schema = ", ".join(f"{name} {kind}" for name, kind in VERDICT.items())
    filled = [
        tuple(({"store": "s", "verdict": "ok"} | row).get(n) for n in VERDICT) for row in rows
    ]
    made: DataFrame = engine.createDataFrame(filled, schema)
    return made


def pending_row(at_ms: int, count: int, topic: str = "T") -> list[dict[str, Any]]:
    return [{"verdict": "pending", "due_ms": START_MS + at_ms, "topic": topic}] * count


def rows_of(frame: DataFrame, *names: str) -> list[Any]:
    rows = [tuple(row[name] for name in names) for row in frame.collect()]
    return [row[0] for row in rows] if len(names) == 1 else rows


# -- what falls due -----------------------------------------------------------------------------


def naive_queue(load: dict[int, int], rate_per_s: float) -> dict[int, int]:
    """Return the backlog at the end of each minute."""
    left, found = 0.0, {}
    for at in range(0, max(load) + 1):
        left = max(left + load.get(at, 0) - rate_per_s * 60, 0.0)
        if at in load:
            found[at] = round(left)
    return found


@pytest.mark.parametrize("rate_per_s", [1, 2])
def test_capacity_equals_the_naive_computation(engine: Any, rate_per_s: int) -> None:
    load = {0: 30, 1: 200, 2: 10, 5: 130, 6: 130, 20: 61}
    rows = [row for at, count in load.items() for row in pending_row(at * MINUTE_MS + 7, count)]
    found = jobs.capacity(jobs.forecast(verdicts_of(engine, *rows)), rate_per_s=rate_per_s)
    queue = {(row["from_ms"] - START_MS) // MINUTE_MS: row["queue"] for row in found.collect()}
    assert queue == naive_queue(load, rate_per_s)
    behind = {row["queue"]: row["behind_ms"] for row in found.collect()}
    assert all(ms == left * 1_000 / rate_per_s for left, ms in behind.items())


def test_without_a_rate_it_returns_the_needed_rate(engine: Any) -> None:
    rows = pending_row(0, 60) + pending_row(1, 60, "U") + pending_row(DAY_MS, 30)
    load = jobs.forecast(verdicts_of(engine, *rows, {"due_ms": 5, "verdict": "ok"}))
    found = jobs.capacity(load)
    assert rows_of(found, "messages", "capacity_per_s", "queue") == [(120, 2.0, 0), (30, 2.0, 0)]
    days = jobs.by_day(load)
    assert rows_of(days, "day", "messages", "peak_at_ms", "peak_per_s") == [
        ("2023-11-15", 120, START_MS, 2.0),
        ("2023-11-16", 30, START_MS + DAY_MS, 0.5),
    ]
    with pytest.raises(ValueError, match="rate_per_s=0"):
        jobs.capacity(load, rate_per_s=0)


# -- how late it was ----------------------------------------------------------------------------


def sent(day: int, late_ms: int, level: int | None = 3, **more: Any) -> dict[str, Any]:
    at_ms = START_MS + day * DAY_MS
    return {
        "level": level,
        "topic": "T",
        "delivered_ms": at_ms,
        "due_ms": at_ms - late_ms,
        "late_ms": late_ms,
        "root": day,
        **more,
    }


def test_trend_totals_and_the_latest(engine: Any) -> None:
    rows = [sent(day, 10 + 5 * day) for day in range(4)]
    rows += [sent(day, 7, None) for day in range(3)] + [sent(9, 900, 4, verdict="late")]
    verdicts = verdicts_of(engine, *rows, {"verdict": "lost", "level": 3, "topic": "T"})
    history = jobs.lateness(verdicts, bucket_ms=DAY_MS)
    trend = jobs.trend(history)
    names = ("level", "pieces", "first_p99_ms", "last_p99_ms", "trend")
    assert rows_of(trend, *names) == [
        (None, 3, 7, 7, "steady"),
        (3, 4, 10, 25, "worse"),
        (4, 1, 900, 900, "steady"),
    ]
    assert [round(s, 6) if s is not None else s for s in rows_of(trend, "p99_ms_per_day")] == [
        0.0,
        5.0,
        None,
    ]
    totals = jobs.totals(verdicts)
    assert rows_of(totals, "level", "messages", "delivered", "findings", "max_ms") == [
        (None, 3, 3, 0, 7),
        (3, 5, 4, 1, 25),
        (4, 1, 1, 1, 900),
    ]
    assert rows_of(jobs.worst(verdicts, count_max=2), "late_ms", "root") == [(900, 9), (25, 3)]
    assert jobs.bucket_of(verdicts) == jobs.HOUR_MS * 6
    assert jobs.bucket_of(verdicts.limit(0)) == jobs.SECOND_MS


# -- migrations ---------------------------------------------------------------------------------


def tables(engine: Any, root: Path) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return verdicts, messages and schedule of a store."""
    paths = [str(root)]
    return (
        audit_stores(engine, paths)[0],
        read_table(engine, paths, "messages", PROOF),
        read_table(engine, paths, "schedule"),
    )


def test_the_plan_equals_the_brokers(engine: Any, tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    fill(rig, 60, (3, 4, 5))
    assert rig.drain.step(4, 7, migration="run-1").moved == 7
    rig.advance(9_996)  # the first messages of level 3 were delivered
    expected = {level.level: level for level in plan_of(rig, 3, 4, 5).levels if level.pending}
    as_of_ms = rig.clock.now_ms()
    rig.close()
    paths = [str(tmp_path)]
    found = jobs.backfill_plan(
        read_table(engine, paths, "schedule"),
        read_table(engine, paths, "cursors"),
        read_table(engine, paths, "messages", jobs.PLAN_COLUMNS),
        as_of_ms=as_of_ms,
    )
    assert 0 < expected[3].pending < 20
    assert expected[4].pending == 13
    mine = {
        row["level"]: PlannedLevel(
            delay_ms=expected[row["level"]].delay_ms,
            estimate_ms=expected[row["level"]].estimate_ms,
            **{
                name: row[name]
                for name in (
                    "level",
                    "pending",
                    "pending_bytes",
                    "first_due_ms",
                    "last_due_ms",
                    "overdue",
                    "unit_bytes",
                )
            },
        )
        for row in found.collect()
    }
    assert mine == expected


def test_proof_of_a_migration(engine: Any, tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    fill(rig, 40, (4, 5))
    assert rig.drain.step(4, 20, migration="run-1").moved == 20
    assert rig.drain.step(5, 5, migration="run-2").moved == 5
    rig.route(4)
    fill(rig, 6, (4,))
    rig.advance(70_000)  # level 4 was delivered, level 5 is pending
    rig.close()
    verdicts, messages, schedule = tables(engine, tmp_path)
    proof = migration_proof(verdicts, messages, schedule).persist()
    names = ("migration", "level", "way", "messages", "delivered", "pending", "not_proven")
    totals = rows_of(proof_totals(proof), *names)
    assert totals == [
        ("", 4, ROUTED, 6, 6, 0, 0),
        ("run-1", 4, DRAINED, 20, 20, 0, 0),
        ("run-2", 5, DRAINED, 5, 0, 5, 0),
    ]
    one = migration_proof(verdicts, messages, schedule, "run-2")
    assert rows_of(proof_totals(one), *names) == totals[2:]
    assert migration_proof(verdicts, messages, schedule, "run-9").count() == 0
    # a message delivered at another time, one delivered twice, and an unknown one
    rows = [row.asDict() for row in verdicts.orderBy("root").collect()]
    drained = [row for row in rows if row["level"] == 4][:3]
    drained[0]["due_ms"] += 1
    drained[1]["verdict"] = "duplicated"
    rows.remove(drained[2])
    broken = migration_proof(verdicts_of(engine, *rows), messages, schedule, "run-1")
    wrong = rows_of(broken.where("not proven").orderBy("phys_offset"), "verdict", "why")
    assert [verdict for verdict, _ in wrong] == ["ok", "duplicated", "lost"]
    assert wrong[0][1] == "it had another due time before the migration"


# -- repair, and the whole run ------------------------------------------------------------------


def test_lost_messages_are_exported_with_their_bodies(engine: Any) -> None:
    verdicts = verdicts_of(
        engine,
        {"leaf": 7, "verdict": "lost"},
        {"leaf": 9, "verdict": "quarantined"},
        {"leaf": None, "verdict": "lost"},
        {"leaf": 8, "verdict": "late"},
    )
    schema = "store string, phys_offset bigint, property_text binary, body binary"
    schema += ", flag int, sys_flag int"
    rows = [("s", n, b"p", b"b%d" % n, n, 1) for n in range(10)]
    found = jobs.repair(verdicts, engine.createDataFrame(rows, schema))
    columns = "phys_offset", "body", "flag", "sys_flag"
    assert rows_of(found, *columns) == [(7, b"b7", 7, 1), (9, b"b9", 9, 1)]
    assert sorted(rows_of(jobs.repair(verdicts), "phys_offset")) == [7, 9]


@pytest.mark.extended
def test_a_run_writes_the_requested_output(engine: Any, tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path / "store").open()
    fill(rig, 40, (4, 5))
    assert rig.drain.step(4, 20, migration="run-1").moved == 20
    rig.advance(70_000)
    rig.close()
    page, out = tmp_path / "report.html", tmp_path / "verdicts"
    wanted = AuditRequest(stores=(str(tmp_path / "store"),), out=str(out), report=page)
    summary = run_audit(engine, wanted, FakeClock())
    assert summary.verdicts == {"pending": 20, "ok": 20}
    assert summary.clean
    text = page.read_text()
    for part in ("By level and topic", "What falls due", "Proof of migrations", "run-1"):
        assert part in text
    folders = {path.parent.name for path in out.rglob("*.parquet")}
    assert folders == {"verdict=ok", "verdict=pending"}
    rows = parquet.read_table(out)
    assert Counter(rows["verdict"].to_pylist()) == summary.verdicts
    assert set(rows.column_names) == {*VERDICT, "day"}
    assert json.dumps(summary.to_json())


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.parametrize("with_report", [False, True])
def test_both_engines_give_the_same_result(spark: Any, tmp_path: Path, with_report: bool) -> None:
    planted, results = plant(tmp_path / "store"), []
    local = LocalSession()
    for session in (spark, local):
        report = tmp_path / "report.html" if with_report else None
        request = AuditRequest(stores=(str(planted.root),), report=report)
        summary = run_audit(session, request, FakeClock())
        results.append((summary.to_json(), report.read_text() if report else ""))
    local.stop()
    assert results[0] == results[1]


# -- faults among many ---------------------------------------------------------------------------


@pytest.fixture
def for_many_rows(spark: Any, request: pytest.FixtureRequest) -> Iterator[int]:
    """Configure Spark as for users if there are many normal messages."""
    count = int(request.config.getoption("--planted"))
    own = {key: spark.conf.get(key) for key in FOR_FEW_ROWS}
    if count > FEW:
        for key in own:
            spark.conf.unset(key)
        spark.conf.set("spark.sql.shuffle.partitions", PIECES)
    yield count
    for key, value in own.items():
        spark.conf.set(key, value)


@pytest.mark.extended
@pytest.mark.spark
def test_exactly_the_faults_among_many_messages_are_found(
    spark: Any, tmp_path: Path, for_many_rows: int
) -> None:
    """With --planted=N: N messages, and one of each kind and holder for every 10_000."""
    planted = plant(tmp_path, each=max(1, for_many_rows // FAULTS_EACH), plain=for_many_rows)
    verdicts, unread = audit_stores(spark, [str(planted.root)], ids=False)
    rows = verdicts.select("root", "verdict").toArrow()
    found = dict(zip(rows["root"].to_pylist(), rows["verdict"].to_pylist(), strict=True))
    assert rows.num_rows == len(found), "one row for each message"
    wrong = [
        (root, planted.verdicts.get(root), found.get(root))
        for root in planted.verdicts | found
        if planted.verdicts.get(root) != found.get(root)
    ]
    assert wrong == []
    gaps = unread.where("damage <> 'pointer'")  # units that refer to no record
    assert sorted(row["phys_offset"] for row in gaps.collect()) == planted.gaps


# -- the audit that goes on ---------------------------------------------------------------------


def watched(spark: Any, home: Path, root: Path, end: int, rows_of: Any = None) -> None:
    """Watch a store up to a log offset, as a restarted process."""
    config = WatchConfig(audit=AuditConfig(), delay_ms=0)
    watch = Watch(spark, home, config, FakeClock(), rows_of or (lambda alarms: None))
    query = watch.start([str(root)], endOffset=end)
    assert query.awaitTermination(ENDED_S)


@pytest.mark.extended
@pytest.mark.spark
def test_a_watch_raises_each_alarm_once_across_restarts(spark: Any, tmp_path: Path) -> None:
    planted, home = plant(tmp_path / "store"), tmp_path / "home"
    places = sorted(
        row["phys_offset"]
        for row in read_table(spark, [str(planted.root)], "messages", ("phys_offset",)).collect()
    )
    reported: list[Any] = []

    def killed(alarms: list[Any]) -> None:
        raise RuntimeError("killed between alarms and checkpoint")

    first, second = places[len(places) // 3], places[len(places) * 2 // 3]
    watched(spark, home, planted.root, first, reported.extend)
    with pytest.raises(Exception, match="killed between alarms and checkpoint"):
        watched(spark, home, planted.root, second, killed)
    for end in (second, second, places[-1] + 1_000_000):
        watched(spark, home, planted.root, end, reported.extend)
    alarms = spark.read.parquet(str(home / "alarms")).orderBy("batch").collect()
    keys = [(row["root"], row["verdict"]) for row in alarms]
    assert sorted(keys) == sorted(set(keys)), "each once"
    assert {(row["root"], row["verdict"]) for row in reported} <= set(keys)
    newest = {row["root"]: row["verdict"] for row in alarms}
    unread = {root for root in planted.verdicts if root not in places}
    absent = unread | planted.in_queues | planted.not_due
    expected = {  # a watch does not use `passed`, only what the log has
        root: "late" if verdict == "lost" and root not in planted.marked else verdict
        for root, verdict in planted.verdicts.items()
        if verdict not in CLEAN and root not in absent
    }
    assert newest == expected
    states = sorted(path.name for path in (home / "state").iterdir())
    assert len(states) == 2, "old states are forgotten"


@pytest.mark.extended
@pytest.mark.spark
def test_few_findings_are_kept_and_those_of_a_changed_store_are_others(
    spark: Any, tmp_path: Path
) -> None:
    """A session keeps few findings, which it would scan for again, but none of another state."""
    rig = MigrationRig(tmp_path / "store").open()
    fill(rig, 10, (3, 4))
    rig.advance(75_000)
    rig.close()
    config = AuditConfig(late_ms=0, as_of_ms=rig.clock.now_ms())
    whole, _ = count_stores(spark, [str(rig.root)], config)
    assert (whole.rest, sum(row["count"] for row in whole.kept)) == (None, 10)
    log = Log(rig.root, SMALL_FILE_BYTES)
    [*_, delivery] = read_rows(rig.root, "messages", "phys_offset")
    log.flip(delivery["phys_offset"] + layout.RECORD_HEAD.itemsize)
    log.close()
    brief, _ = count_stores(spark, [str(rig.root)], config)
    assert brief.rest is not None
    assert (brief.rest.is_cached, brief.rest.count()) == (True, 1)
    assert sum(row["count"] for row in brief.kept) == 9
    brief.rest.unpersist()
