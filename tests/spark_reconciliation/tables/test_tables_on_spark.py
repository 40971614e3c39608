"""Exported tables in Spark: read as Parquet, by `format("duemq")`, and by the example programs."""

from __future__ import annotations

import importlib.util
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spark_reconciliation
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from spark_reconciliation.tables.export import export_stores
from spark_reconciliation.tables.schemas import TABLES
from tests.migration.steps.test_drain import fill
from tests.support.migration_rig import MigrationRig
from tests.support.naive_tables import BROKER, RandomLog, expected
from tests.support.scheduled_logs import START_MS, ScheduledLog

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
SCHEMAS = {name: [column.name for column in table.columns] for name, table in TABLES.items()}
SECOND_MS, MINUTE_MS = 1_000, 60_000
BASE_MS = START_MS // MINUTE_MS * MINUTE_MS


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def test_tables_are_read_by_spark(spark: Any, tmp_path: Path) -> None:
    """Takes seconds: a Spark job for each table."""
    made, root, out = RandomLog(), tmp_path / "store", tmp_path / "out"
    for number in range(60):
        made.step(number * 7 % 24, number * 5 % 41)
    for end in (made.log.records[30].end, None):
        export_stores([str(made.log.write(root, end=end))], out, [BROKER])
    rows = expected(made.events, 0, SCHEMAS)
    for table, names in SCHEMAS.items():
        expected_rows = sorted((tuple(row[name] for name in names) for row in rows[table]), key=str)
        read = spark.read.parquet(str(out / table))
        assert rows_of(read.select(*names)) == expected_rows
        if table == "delivered":
            spark_reconciliation.register(spark)
            source = spark.read.format("duemq").option("table", table).option("brokers", BROKER)
            assert rows_of(source.load(str(root))) == expected_rows


@pytest.mark.extended
def test_a_stream_of_a_running_store(spark: Any, tmp_path: Path) -> None:
    """A broker appends between the micro-batches of one query."""
    rig = MigrationRig(tmp_path / "store").open()
    spark_reconciliation.register(spark)
    queries = []
    for table in ("scheduled", "delivered"):
        source = spark.readStream.format("duemq").option("table", table)
        writer = source.load(str(rig.root)).writeStream.format("memory")
        queries.append(writer.queryName(f"live_{table}").start())
    counts = []
    for advance_ms in (0, 75_000):
        fill(rig, 10, (3, 4))
        rig.advance(advance_ms)
        for query in queries:
            query.processAllAvailable()
        names = ("live_scheduled", "live_delivered")
        counts.append(tuple(spark.table(name).count() for name in names))
    for query in queries:
        query.stop()
    rig.close()
    assert counts == [(10, 0), (20, 20)]
    offsets = [row["log_offset"] for row in spark.table("live_delivered").collect()]
    assert len(set(offsets)) == 20


class Campaign:
    """Messages with one key, all due at one time."""

    def __init__(self, log: ScheduledLog, name: str, due_ms: int) -> None:
        self.log, self.name, self.due_ms = log, name, due_ms

    def schedule(self) -> int:
        own = self.properties | {"REAL_TOPIC": "Mail", "REAL_QID": "0"}
        return self.log.add(TIMER_TOPIC, BASE_MS, own)

    @property
    def properties(self) -> dict[str, str]:
        times = {"TIMER_OUT_MS": str(self.due_ms - 1), "TIMER_DELIVER_MS": str(self.due_ms)}
        return {"KEYS": f"{self.name} mail"} | times

    def deliver(self, origin: int, late_ms: int) -> None:
        self.log.add("Mail", self.due_ms + late_ms, self.properties, origin=origin)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the tables of three campaigns."""
    top, log = tmp_path_factory.mktemp("campaigns"), ScheduledLog()
    spring = Campaign(log, "spring", BASE_MS + 3 * MINUTE_MS)
    summer = Campaign(log, "summer", BASE_MS + 5 * MINUTE_MS)
    later = Campaign(log, "later", BASE_MS + 90 * MINUTE_MS)
    sent = [spring.schedule() for _ in range(4)]
    missed = [summer.schedule() for _ in range(5)]
    later_ones = [later.schedule() for _ in range(300)]
    marker = {"TIMER_DEL_UNIQKEY": "Mail+x", "REAL_TOPIC": "Mail", "TIMER_OUT_MS": "1"}
    log.add(TIMER_TOPIC, BASE_MS, marker, origin=missed[4])
    log.add(TIMER_TOPIC, BASE_MS, marker, origin=later_ones[0])
    for origin in sent:
        spring.deliver(origin, 10)
    summer.deliver(missed[0], 5)
    summer.deliver(missed[1], 70 * SECOND_MS)
    summer.deliver(missed[1], 80 * SECOND_MS)
    level = {"DELAY": "2", "REAL_TOPIC": "Poll", "REAL_QID": "0"}
    log.add(SCHEDULE_TOPIC, summer.due_ms + 90 * MINUTE_MS, level, queue_id=1)
    export_stores([str(log.write(top / "store"))], top / "out")
    return str(top / "out")


def test_lateness_by_hour(spark: Any, tables: str) -> None:
    [row] = example("lateness_by_hour").lateness(spark, tables).collect()
    assert (row["topic"], row["deliveries"], row["max_ms"]) == ("Mail", 7, 80_000)
    assert row["p50_p99_p999_ms"][0] == 10
    assert row["hour"].astimezone(UTC).minute == 0


@pytest.mark.extended
def test_campaigns(spark: Any, tables: str) -> None:
    rows = example("campaigns").campaigns(spark, tables, MINUTE_MS).collect()
    names = ("messages", "delivered", "delivered_twice", "cancelled", "late", "missing")
    assert [(row["campaign"], *(row[name] for name in names)) for row in rows] == [
        ("mail", 309, 6, 1, 2, 1, 301),
        ("later", 300, 0, 0, 1, 0, 299),
        ("summer", 5, 2, 1, 1, 1, 2),
        ("spring", 4, 4, 0, 0, 0, 0),
    ]
    some = example("campaigns").campaigns(spark, tables, MINUTE_MS, ["spring", "later"])
    assert [row["campaign"] for row in some.collect()] == ["later", "spring"]


@pytest.mark.extended
def test_no_message_is_missing_before_its_broker_is_exported(spark: Any, tmp_path: Path) -> None:
    """The tables of another broker are newer."""
    logs = {"a": ScheduledLog(), "b": ScheduledLog()}
    Campaign(logs["a"], "spring", BASE_MS + 3 * MINUTE_MS).schedule()
    level = {"DELAY": "2", "REAL_TOPIC": "Poll", "REAL_QID": "0"}
    logs["b"].add(SCHEDULE_TOPIC, BASE_MS + 90 * MINUTE_MS, level, queue_id=1)
    stores = [str(log.write(tmp_path / name)) for name, log in logs.items()]
    export_stores(stores, tmp_path / "out")
    [row] = (
        example("campaigns")
        .campaigns(spark, str(tmp_path / "out"), MINUTE_MS, ["spring"])
        .collect()
    )
    assert (row["messages"], row["missing"]) == (1, 0)


@pytest.mark.extended
def test_capacity_forecast(spark: Any, tables: str) -> None:
    rows = example("capacity_forecast").forecast(spark, tables, 1).collect()
    backlogs = Counter({row["minute"].astimezone(UTC): row["backlog"] for row in rows})
    counts = {row["minute"].astimezone(UTC): row["messages"] for row in rows}
    minute = datetime.fromtimestamp((BASE_MS + 90 * MINUTE_MS) / 1_000, UTC)
    assert counts[minute] == 299
    assert backlogs[minute] == 299 - 60
    assert sum(counts.values()) == 299 + 2 + 1
