"""Columns made by kernels, compared with the Python decoder record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq_common.topics import DECISION_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.properties import decode_properties
from message_store.log.record import Record, decode_record
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.hashes import FACTOR, hash_text
from spark_reconciliation.scan.planning import log_segments, plan_log
from spark_reconciliation.scan.property_columns import ABSENT, BROKERS
from spark_reconciliation.scan.record_scan import RecordScan
from spark_reconciliation.scan.roles import PENDING_ROLES, RARE, Role
from spark_reconciliation.scan.tables import MESSAGES, TABLES, arrow_schema
from tests.support.encoded_records import encode_record
from tests.support.extended import examples
from tests.support.golden_stores import STORES, GoldenStore, golden_store
from tests.support.written_logs import HOST, START_MS, LogWriter, record_at
from timer_store.enqueue.due_time import due_ms_of, number_of

ALL = [name for name, _ in MESSAGES]
WORD = 1 << 64


def table_of(
    root: Path,
    columns: list[str] = ALL,
    roles: frozenset[int] = frozenset(),
    *,
    topics: bool = False,
) -> pa.Table:
    """Read the messages of a store without Spark."""
    store = Root(str(root))
    made, batches = MessageColumns(columns, roles=roles), []
    for segment in log_segments(store, plan_log(store), bytes_max=1 << 20):
        scan = RecordScan(segment)
        assert scan.open()
        found = [made.batch(scan, rows) for rows in scan.chunks()]
        found += [made.topic_rows(scan)] if topics else []
        batches += [batch for batch in found if batch is not None]
    return pa.Table.from_batches(batches, arrow_schema("messages", columns))


def hash_of(text: bytes) -> int:
    """Return the hash of properties; the naive implementation of `kernels.columns.spans`."""
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


def level_of(had: dict[str, str]) -> int:
    """Return DELAY or DELAy as a 32-bit number, -1 if it is illegal."""
    for name in ("DELAY", "DELAy"):
        number = number_of(had[name]) if had.get(name) else 0
        number = -1 if number is None or abs(number) > 0x7FFFFFFF else number
        if number:
            return number
    return 0


def signed(value: int) -> int:
    return value - WORD if value >= WORD >> 1 else value


def mixed(value: int, number: int) -> int:
    value = (value ^ number % WORD) * FACTOR % WORD
    return (value ^ value >> 29) * FACTOR % WORD


def hashes_of(record: Record, level: int) -> dict[str, Any]:
    """Return the hashes that the audit joins on, of texts combined in Python."""
    had = record.properties
    topic, queue = record.topic, record.queue_id
    real, real_queue = had.get("REAL_TOPIC"), number_of(had.get("REAL_QID"))
    if topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        topic, queue = real or "", real_queue  # type: ignore[assignment]
    value = hash_text(topic.encode()) if topic else None
    named = [text for text in (real, had.get("UNIQ_KEY")) if text is not None]
    marker = had.get("TIMER_DEL_UNIQKEY")
    if had.get("TAGS") == "_RECALL_TAG_" and marker == had.get("UNIQ_KEY"):
        marker = None
    name = marker or ("+".join(named) if had.get("UNIQ_KEY") else None)
    own = hash_text(had["UNIQ_KEY"].encode()) if had.get("UNIQ_KEY") else 0
    own = own or mixed(0, (record.body_crc << 32) + len(record.body))
    out_ms = number_of(had.get("TIMER_OUT_MS"))
    if real:
        of_topic, of_queue = hash_text(real.encode()), real_queue
    else:  # delivered by Apache's timeline in RocksDB
        of_topic, of_queue = (hash_text(topic.encode()) if topic else 0), record.queue_id
    for number in (
        of_topic,
        ABSENT if of_queue is None else of_queue,
        record.born_ms,
        level,
        ABSENT if out_ms is None else out_ms,
    ):
        own = mixed(own, number)
    return {
        "topic_hash": None if value is None else signed(value),
        "target": None if value is None or queue is None else signed(mixed(value, queue)),
        "name_hash": signed(hash_text(name.encode())) if name else None,
        "identity": signed(own),
    }


def rolls_of(had: dict[str, str]) -> int | None:
    """Return the number of rolls; 0 for a roll that is not counted."""
    counted = number_of(had.get("TIMER_ROLL_TIMES"))
    return 0 if counted is None and had.get("TIMER_ROLL_LABEL") else counted


def role_of(record: Record, level: int) -> int:
    """Return the role of a record in the audit."""
    had, named = record.properties, record.prepared_offset < 0
    if record.sys_flag & 0xC not in (0, 8):
        return Role.NONE
    copied = (
        -record.prepared_offset - 1 < record.phys_offset if named else (rolls_of(had) is not None)
    )
    if record.topic == TIMER_TOPIC:
        if had.get("TIMER_DEL_UNIQKEY"):
            return Role.MARK if named else Role.MARKER
        return Role.TIMER_COPY if copied else Role.TIMER
    if record.topic == SCHEDULE_TOPIC:
        return Role.LEVEL_COPY if copied else Role.LEVEL
    if named:
        others = {DECISION_TOPIC: Role.DECISION, QUARANTINE_TOPIC: Role.QUARANTINE}
        return others.get(record.topic, Role.DELIVERY)
    real = had.get("REAL_TOPIC")
    if real and real != record.topic and has_copies(record.topic):
        return Role.NONE
    is_timed = number_of(had.get("TIMER_OUT_MS")) is not None
    return Role.CANDIDATE if (level > 0 and real) or is_timed else Role.NONE


def has_copies(topic: str) -> bool:
    """Return whether a topic has half messages, retries or dead letters."""
    return topic.startswith(("%RETRY%", "%DLQ%")) or topic in (
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )


def head_of(record: Record) -> int:
    """Return the hash of the copied fields of a head; the naive one of `kernels.columns.heads`."""
    host, port = record.born_host
    value = hash_text(host + port.to_bytes(4, "big")) ^ record.born_ms
    value = value * FACTOR % WORD ^ record.sys_flag % WORD ^ (record.flag << 32) % WORD
    value = value * FACTOR % WORD ^ record.reconsume_times % WORD
    value = (value ^ (value >> 29)) * FACTOR % WORD
    return value - WORD if value >> 63 else value


def naive(record: Record, base: int) -> dict[str, Any]:
    """Return the columns of a record in the file that begins at `base`."""
    had = record.properties
    level = level_of(had)
    due_ms = due_ms_of(had, record.store_ms, 1_000)
    if due_ms is None:  # a level message returned by the timers
        due_ms = number_of(had.get("DUEMQ_DUE_MS"))
    names = {"unique_id": "UNIQ_KEY", "keys": "KEYS", "tags": "TAGS", "real_topic": "REAL_TOPIC"}
    numbers = {"real_queue_id": "REAL_QID", "out_ms": "TIMER_OUT_MS"}
    same = (
        "phys_offset",
        "topic",
        "queue_id",
        "queue_offset",
        "store_ms",
        "born_ms",
        "flag",
        "sys_flag",
        "reconsume_times",
        "prepared_offset",
        "body_crc",
        "body",
    )
    return (
        {name: getattr(record, name) for name in same}
        | {name: had.get(key) for name, key in names.items()}
        | {name: number_of(had.get(key)) for name, key in numbers.items()}
        | {
            "record_size": record.total_size,
            "body_len": len(record.body),
            "damage": None,
            "level": level if level > 0 else None,
            "rolls": rolls_of(had),
            "due_ms": due_ms,
            "cancels": had.get("TIMER_DEL_UNIQKEY"),
            "properties_hash": hash_of(record.property_text),
            "head_hash": head_of(record),
            "store_id": 0,
            "unit_ms": None,
            "passed": None,
            "other_time": False,
            "queued": None,
            "file": f"commitlog/{base:020d}",
            "file_offset": record.phys_offset - base,
            "note": None,
            "role": role_of(record, level),
            **hashes_of(record, level),
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
        assert row | {"unit_ms": None} == naive(record, base) | {"store": str(root)}
        assert (row["unit_ms"] is not None) == (record.topic == SCHEDULE_TOPIC)


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
        assert row == naive(record, 0) | {"store": str(root)}


TOPICS = ("T", SCHEDULE_TOPIC, TIMER_TOPIC, DECISION_TOPIC, QUARANTINE_TOPIC)
records = st.tuples(st.sampled_from(TOPICS), st.sampled_from((0, -1, -10_000)), texts)


@settings(max_examples=examples(60))
@given(made=st.lists(records, min_size=1, max_size=9))
def test_rare_records_are_found_by_their_property_names(
    tmp_path_factory: Any, made: list[tuple[str, int, list[tuple[str, str]]]]
) -> None:
    """They are found without parsing all properties, and no others are."""
    folder = tmp_path_factory.mktemp("log") / "commitlog"
    folder.mkdir()
    data = b""
    for topic, prepared, text in made:
        data += encode_record(
            topic=topic,
            queue_id=0,
            body=b"",
            property_text="\x02".join(f"{name}\x01{value}" for name, value in text).encode(),
            queue_offset=0,
            phys_offset=len(data),
            born_ms=START_MS,
            born_host=HOST,
            store_ms=START_MS,
            store_host=HOST,
            prepared_offset=prepared,
        )
    (folder / f"{0:020d}").write_bytes(data.ljust(1 << 16, b"\0"))
    rare = frozenset(range(RARE, Role.CANDIDATE + 1))
    whole = table_of(folder.parent).to_pylist()
    expected = [row for row in whole if row["role"] in rare]
    assert table_of(folder.parent, roles=rare).to_pylist() == expected
    named = table_of(folder.parent, roles=rare | {Role.TOPIC}, topics=True).to_pylist()
    met = {row["topic_hash"] for row in whole if row["role"] in PENDING_ROLES} - {None}
    assert met <= {row["topic_hash"] for row in named if row["role"] == Role.TOPIC}


TIMED = {"TIMER_OUT_MS": "5", "REAL_TOPIC": "T", "REAL_QID": "0"}
LEVEL = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0"}


@pytest.mark.parametrize(
    ("topic", "properties", "role"),
    [
        ("T", TIMED, Role.CANDIDATE),
        ("T", LEVEL, Role.CANDIDATE),
        ("U", TIMED, Role.CANDIDATE),
        ("%RETRY%g_T", TIMED, Role.NONE),
        ("%RETRY%g", {"DELAY": "3", "REAL_TOPIC": "%RETRY%g"}, Role.CANDIDATE),
        ("%RETRY%g", {"TIMER_OUT_MS": "5"}, Role.CANDIDATE),
        ("%DLQ%g", TIMED, Role.NONE),
        ("RMQ_SYS_TRANS_HALF_TOPIC", LEVEL, Role.NONE),
        ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", LEVEL, Role.NONE),
        ("TRANS_CHECK_MAX_TIME_TOPIC", LEVEL, Role.NONE),
    ],
)
def test_half_messages_retries_and_dead_letters_are_no_deliveries(
    tmp_path: Path, topic: str, properties: dict[str, str], role: int
) -> None:
    log = LogWriter(tmp_path)
    log.data += record_at(0, b"body", topic=topic, **properties)
    root = log.write()
    [row] = table_of(root).to_pylist()
    record = decode_record(memoryview(bytes(log.data)), 0)
    assert (row["role"], role_of(record, level_of(record.properties))) == (role, role)
    rare = table_of(root, roles=frozenset(range(RARE, Role.CANDIDATE + 1)))
    assert rare.num_rows == (role == Role.CANDIDATE)


def test_only_requested_columns_are_made(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    log.add(b"body")
    found = table_of(log.write(), ["topic", "body_crc"])
    assert found.column_names == ["topic", "body_crc"]


def test_a_body_that_does_not_match_its_crc_is_reported(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    places = [log.add(b"body") for _ in range(3)]
    log.data[places[1] + 89] ^= 1
    assert table_of(log.write())["damage"].to_pylist() == [None, "body-crc", None]


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_a_type_of_arrow(table: str) -> None:
    names = [name for name, _ in TABLES[table]]
    assert arrow_schema(table, names).names == names
