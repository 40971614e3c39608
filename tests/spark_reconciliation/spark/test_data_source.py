"""The data source without Spark: options, columns and all tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.scan.tables import TABLES, schema_of
from spark_reconciliation.spark.data_source import StoreSource
from spark_reconciliation.spark.reader import SparkStoreReader
from tests.support.golden_stores import STORES, GoldenStore, golden_store
from tests.support.written_logs import LogWriter

CLEAN_5 = "apache-5.3.3-clean"


def read(table: str, columns: list[str] | None = None, **options: Any) -> list[Any]:
    """Return the rows of a table as the data source gives them to Spark."""
    texts = {key: str(value) for key, value in ({"path": golden_store(CLEAN_5)} | options).items()}
    names = columns or [name for name, _ in TABLES[table]]
    reader = SparkStoreReader(parse_options(texts | {"table": table}), names)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs the option path"),
        ({"path": "/s", "table": "nothing"}, "has no table nothing; there are messages"),
        ({"path": "/s", "fromMs": "soon"}, "fromms=soon is not a number"),
        ({"path": "/s", "colour": "red"}, "unknown option colour"),
    ],
)
def test_illegal_options(options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_options(options)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a store: it has neither commitlog"):
        read("messages", path=tmp_path)


def test_each_table_has_its_schema() -> None:
    for table in TABLES:
        source = StoreSource({"path": "/s", "table": table})
        assert source.schema() == schema_of(table)
    assert StoreSource.name() == "rocketmq-store"


@pytest.mark.parametrize("bytes_max", [1_000, 1 << 20])
@pytest.mark.parametrize("store", STORES, ids=str)
def test_queue_rows_refer_to_messages(store: GoldenStore, bytes_max: int) -> None:
    options = {"path": golden_store(store.name), "partitionBytes": bytes_max}
    names = ["topic", "queue_id", "queue_offset", "phys_offset", "record_size"]
    messages = read("messages", columns=[*names, "sys_flag"], **options)
    queued = {tuple(row[n] for n in names) for row in messages if row["sys_flag"] & 0xC in (0, 8)}
    units = read("consume_queue", columns=names, **options)
    assert {tuple(row.values()) for row in units} == queued
    schedule = read("schedule", **options)
    assert len(schedule) == sum(row["topic"] == "SCHEDULE_TOPIC_XXXX" for row in messages)
    assert all(row["due_ms"] > 1 << 40 for row in schedule)


@pytest.mark.parametrize("bytes_max", [300, 1 << 20])
def test_timer_units_are_chained_in_slots(bytes_max: int) -> None:
    units = {row["pos"]: row for row in read("timer_log", partitionBytes=bytes_max)}
    for slot in read("timer_wheel"):
        pos, count = slot["last_pos"], 0
        while pos >= 0 and pos in units:
            assert units[pos]["slot_ms"] // 1_000 == slot["tick"]
            pos, count = units[pos]["prev_pos"], count + 1
        assert count >= 1
    assert len(units) == 32


def test_index_items_refer_to_records() -> None:
    offsets = {row["phys_offset"] for row in read("messages", columns=["phys_offset"])}
    items = read("index")
    assert len(items) > 100
    assert {row["phys_offset"] for row in items} <= offsets


def test_offsets_of_levels_groups_and_timers() -> None:
    rows = read("cursors")
    assert {row["kind"] for row in rows} == {"level", "consumer", "timer"}
    levels = {row["queue_id"]: row["value"] for row in rows if row["kind"] == "level"}
    assert levels[0] == 4


SELECTIONS = [
    ({"topics": "GoldenTx, x"}, lambda row: row["topic"] == "GoldenTx"),
    ({"startOffset": 52_457}, lambda row: row["phys_offset"] >= 52_457),
    ({"endOffset": 52_457}, lambda row: row["phys_offset"] < 52_457),
    ({"fromMs": 1_795_225_833_000}, lambda row: row["store_ms"] >= 1_795_225_833_000),
    ({"untilMs": 1_795_225_833_000}, lambda row: row["store_ms"] < 1_795_225_833_000),
]


@pytest.mark.parametrize(("options", "selects"), SELECTIONS, ids=lambda value: str(value)[:14])
def test_options_select_rows(options: dict[str, Any], selects: Any) -> None:
    everything = read("messages")
    rows = read("messages", partitionBytes=9_000, **options)
    assert rows == [row for row in everything if selects(row)]
    assert 0 < len(rows) < len(everything)


def test_damage_is_a_row_and_a_finding(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    places = [log.add(b"body" * 9) for _ in range(30)]
    log.data[places[7] + 4] = 0
    log.write()
    rows = read("messages", path=tmp_path, columns=["phys_offset", "damage", "topic"])
    assert [row for row in rows if row["damage"]] == [
        {"phys_offset": places[7], "damage": "gap", "topic": None}
    ]
    (finding,) = read("findings", path=tmp_path)
    assert (finding["kind"], finding["offset"]) == ("gap", places[7])
    assert finding["file"] == "commitlog/00000000000000000000"
    assert len(read("messages", path=tmp_path, columns=["topic"])) == 29
