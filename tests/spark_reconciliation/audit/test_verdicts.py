"""The verdicts of both engines compared with a naive audit, on random stores and on Apache's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame

from duemq.cli.decoded_page import is_of_application
from spark_reconciliation.audit.aggregated_audit import KEPT, WHOLE, aggregate_verdicts
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.rules import CLEAN, EXCUSED, VERDICTS
from spark_reconciliation.audit.summary import summarize, write_parquet
from spark_reconciliation.audit.verdicts import COLUMNS, _steps, audit, take_survey
from spark_reconciliation.jobs.jobs import forecast, lateness, repair
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.scan.options import FORMAT
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.spark.read import audit_stores, read_table
from tests.duemq.cli.test_stopped_store import pending_of
from tests.spark_reconciliation.conftest import IN_TEST_ALL, ON_SPARK, session_of_each
from tests.support.audit_rows import AuditTables
from tests.support.golden_stores import (
    ROCKSDB_VERSION,
    STORES,
    GoldenStore,
    golden_store,
    manifest_lines,
)
from tests.support.naive_audit import naive_audit
from tests.support.planted_faults import Planted, plant
from tests.support.random_histories import RandomStore
from tests.support.written_logs import LogWriter

STORES_RANDOM = 400
STORES_ON_SPARK = 100  # of other seeds each day; both engines have the same rules
TIMELINES = ("apache-5.5.1-rolled", "apache-5.5.1-timeline")
OTHER_LEVELS_MS = [(100,), (2_900, 3_100, 90_000)]
Row = dict[str, Any]
engine = session_of_each(ON_SPARK, "local")


def verdicts_of(found: DataFrame) -> dict[tuple[str, int], str]:
    """Return the verdicts about stores whose clock was never set back."""
    rows = found.select("store", "root", "verdict", "why").collect()
    verdicts = {(row["store"], row["root"]): row["verdict"] for row in rows}
    assert len(verdicts) == len(rows), "one row for each message"
    assert not [row for row in rows if row["why"] in EXCUSED], "no clock step explains a verdict"
    return verdicts


@pytest.mark.parametrize("engine", [IN_TEST_ALL, "local"], indirect=True)
def test_random_stores_have_the_naive_verdicts(engine: Any, seed: int) -> None:
    is_local = isinstance(engine, LocalSession)
    count = STORES_RANDOM if is_local else STORES_ON_SPARK
    stores = [RandomStore(f"s{n}", seed + n) for n in range(count)]
    messages = [row for store in stores for row in store.messages]
    queues = [row for store in stores for row in store.queues]
    cursors = [row for store in stores for row in store.cursors]
    lean = AuditTables(messages, queues, cursors)
    levels = {f"s{n}": OTHER_LEVELS_MS[n % 3] for n in range(count) if n % 3 < 2}
    levels_of = {
        of: [number for name, number in lean.numbers.items() if levels.get(name) is of]
        for of in OTHER_LEVELS_MS
    }
    config = AuditConfig(late_ms=1_500, levels_of=levels_of)
    found, _ = audit(*lean.frames(engine), config)
    mine, expected = verdicts_of(found), naive_audit(messages, queues, cursors, config, levels)
    wrong = {
        k: (mine.get(k), expected.get(k)) for k in mine | expected if mine.get(k) != expected.get(k)
    }
    assert not wrong, f"--seed={seed}: {dict(list(wrong.items())[:5])}"
    assert set(expected.values()) == set(VERDICTS) or not is_local, "every verdict occurs"


def plain_only(row: Row) -> bool:
    """Return whether a brief audit may sum up this record."""
    lean = AuditTables([row], [], []).messages[0]
    return lean["role"] not in WHOLE


@pytest.mark.extended
def test_a_brief_audit_has_the_counts_of_the_whole_one(engine: Any, seed: int) -> None:
    stores = [RandomStore(f"s{n}", seed + n) for n in range(STORES_RANDOM // 2)]
    messages = [row for store in stores for row in store.messages if plain_only(row)]
    names = {row["store"] for row in messages}
    queues = [row for store in stores for row in store.queues if row["store"] in names]
    cursors = [row for store in stores for row in store.cursors if row["store"] in names]
    lean = AuditTables(messages, queues, cursors)
    survey = take_survey(*lean.frames(engine), AuditConfig(late_ms=1_500))
    assert not survey.met & WHOLE
    assert survey.events is not None, "something rare touches some"
    brief = aggregate_verdicts(survey, lean.tallies(engine))
    assert {row["verdict"] for row in brief.kept} == set(KEPT)
    whole = survey.verdicts(survey.histories(survey.plain), ids=False)
    mine = summarize(brief.rest, survey.unread, kept=brief.kept)
    expected = summarize(whole, survey.unread)
    assert (mine.verdicts, mine.lateness_ms) == (expected.verdicts, expected.lateness_ms)
    names = ("verdict", "store", "root", "why")  # type: ignore[assignment]
    assert [[row[n] for n in names] for row in mine.offenders] == [
        [row[n] for n in names] for row in expected.offenders
    ]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return plant(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def audited(engine: Any, planted: Planted) -> tuple[DataFrame, DataFrame]:
    """Return the audit of the planted faults and of Apache's stores."""
    names = [*(store.name for store in STORES), *TIMELINES]
    paths = [str(planted.root), *(str(golden_store(name)) for name in names)]
    verdicts, unread = audit_stores(engine, paths)
    return verdicts.persist(), unread


@pytest.fixture(scope="module")
def golden(audited: tuple[DataFrame, DataFrame], planted: Planted) -> list[Row]:
    """Return the verdicts of all golden stores."""
    rows = [row.asDict() for row in audited[0].collect()]
    return [row for row in rows if row["store"] != str(planted.root)]


@pytest.mark.parametrize("store", STORES, ids=str)
def test_golden_stores_agree_with_their_manifests(golden: list[Row], store: GoldenStore) -> None:
    rows = [row for row in golden if row["store"] == str(golden_store(store.name))]
    received = Counter(
        (line["topic"], line["queue"], line["physOffset"])
        for line in manifest_lines(store.version, "received")
    )
    delivered = [row for row in rows if row["deliveries"]]
    assert {row["verdict"] for row in rows} <= CLEAN
    for row in delivered:
        if not row["topic"].startswith("%"):
            assert received[row["topic"], row["queue_id"], row["delivered_phys"]] >= 1
    recalled = {line["answer"] for line in manifest_lines(store.version, "recalled")}
    cancelled = {row["unique_id"] for row in rows if row["verdict"] == "cancelled"}
    assert cancelled == recalled


@pytest.mark.parametrize("name", TIMELINES)
def test_copies_by_apaches_timeline_in_rocksdb_are_parts_of_their_message(
    golden: list[Row], name: str
) -> None:
    rows = [row for row in golden if row["store"] == str(golden_store(name))]
    found = {row["unique_id"]: row for row in rows}
    assert len(found) == len(rows), "a copy is no message of its own"
    for number in range(2):
        assert found[f"unique-first-taken-{number}"]["verdict"] == "cancelled"
        rolled = found[f"unique-first-days-{number}"]
        assert rolled["verdict"] == "pending"
        assert rolled["hops"] == (4 if name == "apache-5.5.1-rolled" else 1)
    [counts] = [
        line["counts"]
        for line in manifest_lines(ROCKSDB_VERSION, "delivered")
        if name.endswith(f"-{line['store']}")
    ]
    deliveries = {body: count for body, count in counts.items() if "-timer-" in body}
    assert deliveries, "Apache's broker delivered some, and after a kill some twice"
    for body, count in deliveries.items():
        assert found[f"unique-{body}"]["deliveries"] == count


@pytest.mark.extended
@pytest.mark.parametrize("store", STORES, ids=str)
def test_exports_have_the_messages_that_the_audit_finds_pending(
    golden: list[Row], store: GoldenStore, tmp_path: Path
) -> None:
    rows = [row for row in golden if row["store"] == str(golden_store(store.name))]
    pending = Counter(
        (row["unique_id"], row["due_ms"])
        for row in rows
        if row["verdict"] == "pending" and is_of_application(row["topic"])
    )
    lines = pending_of(golden_store(store.name), tmp_path)
    assert pending == Counter((line.unique_id, line.due_ms) for line in lines)


def test_the_naive_audit_of_golden_stores(engine: Any, golden: list[Row]) -> None:
    paths = [str(golden_store(store.name)) for store in STORES]
    tables = [
        [row.asDict() for row in read_table(engine, paths, table, columns).collect()]
        for table, columns in (("messages", COLUMNS), ("consume_queue", ()), ("cursors", ()))
    ]
    expected = naive_audit(*tables, AuditConfig())  # type: ignore[call-arg]
    rows = [row for row in golden if row["store"] in paths]
    assert {(row["store"], row["root"]): row["verdict"] for row in rows} == expected


def test_exactly_the_planted_faults_are_found(
    audited: tuple[DataFrame, DataFrame], planted: Planted, tmp_path: Path
) -> None:
    mine = f"store = '{planted.root}'"
    verdicts, unread = audited[0].where(mine), audited[1].where(mine)
    found = {row["root"]: row["verdict"] for row in verdicts.collect()}
    assert found == planted.verdicts
    assert set(planted.verdicts.values()) == set(VERDICTS) - {"removed"}, "see test_removed"
    places = unread.collect()
    assert [row["phys_offset"] for row in places if row["damage"] != "pointer"] == planted.gaps
    units = {row["file"].split("/")[0] for row in places if row["damage"] == "pointer"}
    assert units == {"timerlog", "consumequeue"}  # of lost records, and the unit without a record
    summary = summarize(verdicts, unread)
    assert summary.messages == len(planted.verdicts)
    assert not summary.clean
    assert not summary.complete
    assert "ok" not in {row["verdict"] for row in summary.offenders}
    write_parquet(verdicts.where("verdict = 'lost'"), str(tmp_path / "verdicts"))
    lost = list(planted.verdicts.values()).count("lost")
    assert parquet.read_table(tmp_path / "verdicts").num_rows == lost


def test_further_jobs(engine: Any) -> None:
    names = "topic string, level bigint, verdict string, due_ms bigint, delivered_ms bigint, "
    names += "late_ms bigint, store string, leaf bigint, queue_id int, unique_id string, why string"
    place = ("s", 7, 0, "u", "why")
    rows = [
        ("T", None, "pending", 60_000, None, None, *place),
        ("T", None, "pending", 119_999, None, None, *place),
        ("U", 3, "pending", 120_000, None, None, *place),
        ("T", 3, "ok", 0, 10, 10, *place),
        ("T", 3, "late", 0, 9_000, 9_000, *place),
        ("T", None, "lost", 5, None, None, *place),
    ]
    verdicts = engine.createDataFrame(rows, names)
    loads = [(r["from_ms"], r["topic"], r["messages"]) for r in forecast(verdicts).collect()]
    assert loads == [(60_000, "T", 2), (120_000, "U", 1)]
    (late,) = lateness(verdicts).collect()
    assert (late["from_ms"], late["level"], late["messages"], late["max_ms"]) == (0, 3, 2, 9_000)
    assert [row["phys_offset"] for row in repair(verdicts).collect()] == [7]


@pytest.mark.extended
@pytest.mark.spark
def test_a_stream_continues_at_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    log, out = LogWriter(tmp_path / "store"), tmp_path / "out"
    reader = spark.readStream.format(FORMAT).schema("phys_offset bigint, topic string")
    for _ in range(2):
        for _ in range(70):
            log.add(b"x" * 300)
        rows = reader.option("path", str(log.write())).load()
        query = rows.writeStream.format("parquet").option("path", str(out))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    found = [row["phys_offset"] for row in spark.read.parquet(str(out)).collect()]
    assert sorted(found) == [at for at, _ in log.places]


def test_a_clock_step_that_only_one_record_shows_excuses_nothing(engine: Any) -> None:
    rare = engine.createDataFrame(
        [
            (0, Role.CLOCK, 1, 100, 9_000, 1_000),
            (0, Role.CLOCK, 0, 200, 99_000, 2_000),
            (1, Role.CLOCK, 0, 50, 5_000, 100),
        ],
        "store_id int, role int, passed int, phys_offset long, out_ms long, store_ms long",
    )
    (row,) = _steps(rare).collect()
    assert (row["store_id"], row["newest_ms"]) == (0, 9_000)
    assert [(step["at"], step["ms"]) for step in row["steps"]] == [(100, 8_000)]
