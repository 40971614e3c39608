"""Columns made by kernels say what the readable decoder says, record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store.properties import decode_properties
from message_store.record import Record, decode_record
from reconciliation.columns import BROKERS, MessageColumns, arrow_schema, hash_text
from reconciliation.files import Root
from reconciliation.planning import log_segments, plan_log
from reconciliation.scanning import Walk
from reconciliation.tables import MESSAGES, TABLES
from tests.golden_data import STORES, GoldenStore, golden_store
from tests.reconciliation.log_help import LogWriter
from timer_store.due import due_ms_of, number_of

ALL = [name for name, _ in MESSAGES]
WORD = 1 << 64


def table_of(root: Path, columns: list[str] = ALL) -> pa.Table:
    """Return the messages of a store without Spark."""
    store = Root(str(root))
    made, batches = MessageColumns(columns), []
    for segment in log_segments("s", store, plan_log("s", store), bytes_max=1 << 20):
        walk = Walk(segment, check=True)
        assert walk.open()
        batches += [made.batch(walk, rows) for rows in walk.chunks()]
    return pa.Table.from_batches(batches, arrow_schema("messages", columns))


def hash_of(text: bytes) -> int:
    """Return the properties' hash: the naive twin of `kernels.columns.spans`."""
    total, last = 0, {}
    for entry in text.split(b"\x02"):
        name, separator, value = entry.partition(b"\x01")
        if name and separator and value and name.decode("utf-8", "replace") not in BROKERS:
            last[name] = value
    for name, value in last.items():
        own, other = hash_text(name), hash_text(value)
        total += (own ^ (other >> 29) ^ other) * 0x9E3779B97F4A7C15 % WORD
    total %= WORD
    return total - WORD if total >= WORD >> 1 else total


def naive(record: Record) -> dict[str, Any]:
    """Return the columns of one record."""
    had = record.properties
    level = number_of(had.get("DELAY")) or number_of(had.get("DELAy")) or 0
    due_ms = due_ms_of(had, record.store_ms, 1_000)
    if due_ms is None:  # a level message that came back from the timers
        due_ms = number_of(had.get("DUEMQ_DUE_MS"))
    names = {"unique_id": "UNIQ_KEY", "keys": "KEYS", "tags": "TAGS", "real_topic": "REAL_TOPIC"}
    numbers = {"real_queue_id": "REAL_QID", "out_ms": "TIMER_OUT_MS", "rolls": "TIMER_ROLL_TIMES"}
    same = (
        *("phys_offset", "topic", "queue_id", "queue_offset", "store_ms", "born_ms", "flag"),
        *("sys_flag", "reconsume_times", "prepared_offset", "body_crc", "body"),
    )
    return (
        {name: getattr(record, name) for name in same}
        | {name: had.get(key) for name, key in names.items()}
        | {name: number_of(had.get(key)) for name, key in numbers.items()}
        | {
            "store": "s",
            "record_size": record.total_size,
            "body_len": len(record.body),
            "damage": None,
            "level": level if level > 0 else None,
            "due_ms": due_ms,
            "cancels": had.get("TIMER_DEL_UNIQKEY"),
            "properties_hash": hash_of(record.property_text),
            "property_text": record.property_text,
        }
    )


@pytest.mark.parametrize("store", STORES, ids=str)
def test_golden_records(store: GoldenStore) -> None:
    root = golden_store(store.name)
    found = table_of(root).to_pylist()
    assert len(found) > 50
    for row in found:
        base = row["phys_offset"] // 65_536 * 65_536
        data = (root / "commitlog" / f"{base:020d}").read_bytes()
        record = decode_record(memoryview(data)[row["phys_offset"] - base :], row["phys_offset"])
        assert row == naive(record)


names = st.sampled_from(
    [*BROKERS, "UNIQ_KEY", "KEYS", "TAGS", "TIMER_DEL_UNIQKEY", "own", "other", "ä"]
)
values = st.one_of(st.integers(-5, 10**15).map(str), st.text("ab\x01ü", max_size=5))
texts = st.lists(st.tuples(names, values), max_size=12)


@settings(max_examples=40)
@given(texts=st.lists(texts, min_size=1, max_size=8))
def test_any_properties(tmp_path_factory: Any, texts: list[list[tuple[str, str]]]) -> None:
    log = LogWriter(tmp_path_factory.mktemp("log"))
    pieces = ["\x02".join(f"{name}\x01{value}" for name, value in text) for text in texts]
    for piece in pieces:
        at = log.add(b"body")
        log.data[-2:] = len(piece.encode()).to_bytes(2, "big") + piece.encode()
        size = len(log.data) - at
        log.data[at : at + 4] = size.to_bytes(4, "big")
        log.places[-1] = (at, size)
    root = log.write()
    data = np.fromfile(next((root / "commitlog").iterdir()), np.uint8)
    for row, (at, size) in zip(table_of(root).to_pylist(), log.places, strict=True):
        record = decode_record(memoryview(data[at : at + size].data), at)
        assert decode_properties(row["property_text"]) == record.properties
        expected = naive(record) | {"level": row["level"]}  # 32 bits: see test_properties
        assert row == expected


def test_only_what_is_asked_for_is_made(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(b"body")
    found = table_of(log.write(), ["topic", "body_crc"])
    assert found.column_names == ["topic", "body_crc"]


def test_a_body_that_does_not_match_its_crc_is_told(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    places = [log.add(b"body") for _ in range(3)]
    log.data[places[1] + 89] ^= 1
    assert table_of(log.write())["damage"].to_pylist() == [None, "body-crc", None]


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_a_type_of_arrow(table: str) -> None:
    names = [name for name, _ in TABLES[table]]
    assert arrow_schema(table, names).names == names
