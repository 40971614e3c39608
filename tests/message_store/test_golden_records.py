"""Apache's records: their offsets, their fields as its client received them, and re-encoding."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from message_store import layout
from message_store.log.offset_id import decode_offset_id, encode_offset_id
from message_store.log.record import Record, decode_record, encode_record
from tests.support.golden_stores import (
    LOG_FILE_BYTES,
    STORES,
    GoldenStore,
    golden_store,
    manifest_lines,
)

SET_BY_CLIENT = {"CONSUME_START_TIME", "MAX_OFFSET", "MIN_OFFSET"}


def log_bytes(root: Path) -> bytes:
    """Return the whole log, which starts at log offset 0."""
    paths = sorted((root / "commitlog").iterdir())
    assert [int(path.name) for path in paths] == [n * LOG_FILE_BYTES for n in range(len(paths))]
    return b"".join(path.read_bytes() for path in paths)


def records(data: bytes) -> Iterator[tuple[int, Record]]:
    """Yield (log offset, record), found by the Python decoder."""
    at = 0
    while at + 8 <= len(data):
        size, magic = (int(value) for value in size_and_magic(data, at))
        if magic == layout.MAGIC_BLANK:
            at += size
        elif size <= 0:
            return
        else:
            yield at, decode_record(memoryview(data)[at : at + size], at)
            at += size


def size_and_magic(data: bytes, at: int) -> tuple[int, int]:
    return layout.packer(layout.BLANK_RECORD).unpack_from(data, at)


def lines_within(store: GoldenStore, kind: str, log_end: int) -> list[dict[str, Any]]:
    """Return the manifest lines of records in this copy of the log."""
    lines = manifest_lines(store.version, kind)
    return [x for x in lines if x["offsetMsgId"] and offset_of(x) < log_end]


def offset_of(line: dict[str, Any]) -> int:
    return decode_offset_id(line["offsetMsgId"])[2]


def log_end(data: bytes) -> int:
    return max(at + record.total_size for at, record in records(data))


@pytest.fixture(params=STORES, ids=str)
def golden(request: pytest.FixtureRequest) -> GoldenStore:
    store: GoldenStore = request.param
    return store


@pytest.fixture
def log(golden: GoldenStore) -> bytes:
    return log_bytes(golden_store(golden.name))


def test_decoded_records_encode_to_the_same_bytes(log: bytes) -> None:
    found = list(records(log))
    assert len(found) > 100
    for at, record in found:
        assert record.phys_offset == at
        assert encode_record(record) == log[at : at + record.total_size]


def test_received_messages_equal_the_log(golden: GoldenStore, log: bytes) -> None:
    lines = lines_within(golden, "received", log_end(log))
    assert len(lines) >= 40
    for line in lines:
        at = line["physOffset"]
        record = decode_record(memoryview(log)[at : at + line["storeSize"]], at)
        assert seen_of_record(record) == seen_of_line(line)
        assert encode_offset_id(*record.store_host, at) == line["offsetMsgId"]
        expected = {k: v for k, v in properties_of(line).items() if k not in SET_BY_CLIENT}
        assert record.properties == expected
        assert line["sysFlag"] in (record.sys_flag, record.sys_flag & ~layout.SYS_COMPRESSED)
        assert body_of(record) == (line["body_len"], line["body_crc"])


def seen_of_record(record: Record) -> tuple[Any, ...]:
    topic = record.topic
    if topic.startswith("%RETRY%"):  # as a client passes it to its listener
        topic = record.properties["RETRY_TOPIC"]
    return (
        topic,
        record.queue_id,
        record.queue_offset,
        record.total_size,
        record.born_ms,
        record.store_ms,
        record.reconsume_times,
        record.prepared_offset,
    )


def seen_of_line(line: dict[str, Any]) -> tuple[Any, ...]:
    names = ("topic", "queue", "queueOffset", "storeSize", "born", "stored", "reconsume", "prepTx")
    return tuple(line[name] for name in names)


def properties_of(line: dict[str, Any]) -> dict[str, str]:
    """Return the properties from Java's text of a map: {a=1, b=2}."""
    pairs = (piece.partition("=") for piece in line["props"][1:-1].split(", "))
    return {name: value for name, _, value in pairs}


def body_of(record: Record) -> tuple[int, int]:
    """Return length and CRC-32 of the body that the client sees."""
    compressed = record.sys_flag & layout.SYS_COMPRESSED
    body = zlib.decompress(record.body) if compressed else record.body
    return len(body), zlib.crc32(body)


def test_every_acknowledged_message_is_in_the_log(golden: GoldenStore, log: bytes) -> None:
    lines = lines_within(golden, "sent", log_end(log))
    assert len(lines) >= 80
    for line in lines:
        record = decode_record(memoryview(log)[offset_of(line) :], offset_of(line))
        assert record.queue_offset == line["queueOffset"]
        assert record.properties["UNIQ_KEY"] == line["msgId"]
        assert line["topic"] in (record.topic, record.properties.get("REAL_TOPIC"))
        assert body_of(record) == (line["body_len"], line["body_crc"])
        if line["level"] > 0:
            held = min(line["level"], 18)
            assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", held - 1)
            assert record.properties["DELAY"] == str(held)


def test_messages_sent_without_an_offset_in_the_response_are_in_the_log(
    golden: GoldenStore, log: bytes
) -> None:
    lines = [x for x in manifest_lines(golden.version, "sent") if not x["offsetMsgId"]]
    assert len(lines) == 4  # one one-way message and three transactions
    stored = {(r.properties.get("KEYS"), *body_of(r)) for _, r in records(log)}
    for line in lines:
        assert (line["keys"], line["body_len"], line["body_crc"]) in stored


def test_a_batch_is_one_record_per_message(golden: GoldenStore, log: bytes) -> None:
    (line,) = manifest_lines(golden.version, "sent_batch")
    offsets = [decode_offset_id(text)[2] for text in line["offsetMsgId"].split(",")]
    found = [decode_record(memoryview(log)[at:], at) for at in offsets]
    assert len(found) == line["count"]
    first = found[0].queue_offset
    assert [r.queue_offset for r in found] == list(range(first, first + line["count"]))
    assert {(r.topic, r.queue_id) for r in found} == {(line["topic"], found[0].queue_id)}
