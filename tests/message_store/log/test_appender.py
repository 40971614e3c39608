"""Refused rows: reasons, and what they do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from message_store.log.batch import PutBatch
from message_store.verify import verify_store
from tests.support.stores import add_message, open_store, put_one

FILE_BYTES = 1 << 16
REAL = {"real_topic_index": 1, "real_queue_id": 12}  # REAL_TOPIC=Real, REAL_QID=12: 28 bytes


@pytest.mark.parametrize(
    ("body_bytes", "property_bytes", "queue_id", "columns", "why"),
    [
        (60_001, 10, 0, {}, "its body has 60001 bytes; maxMessageSize is 60000"),
        (1, 10, -1, {}, "its queue is -1; queues begin at 0"),
        (1, 32_768, 0, {}, "its properties have 32768 bytes; the limit is 32767"),
        (
            1,
            32_740,
            0,
            REAL,
            "its properties have 32768 bytes, 28 of them added by the broker; the limit is 32767",
        ),
        (
            60_000,
            10_000,
            0,
            {},
            "its record has more bytes than a file of the commit log; "
            "mappedFileSizeCommitLog is 65536",
        ),
    ],
)
def test_a_refusal_names_the_limit(
    tmp_path: Path,
    body_bytes: int,
    property_bytes: int,
    queue_id: int,
    columns: dict[str, Any],
    why: str,
) -> None:
    changes: dict[str, Any] = {"commitlog_file_bytes": FILE_BYTES, "message_bytes_max": 60_000}
    with open_store(tmp_path, FakeClock(), **changes) as store:
        batch = PutBatch(1)
        store.topics.add("T")
        assert store.topics.add("Real") == REAL["real_topic_index"]
        properties = {"P": "p" * (property_bytes - 3)}
        add_message(store, batch, "T", queue_id, b"b" * body_bytes, properties=properties)
        for name, value in columns.items():
            batch.rows[0][name] = value
        store.put(batch)
        assert batch.rows[0]["status"] == 13
        assert batch.remarks == {0: f"the message is illegal: {why}"}


def test_a_refused_message_does_not_advance_the_time_of_the_last_record(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock, message_bytes_max=10) as store:
        put_one(store, "T", body=b"stored")
        stored_ms = store.appender.last_store_ms
        clock.advance(5_000)
        put_one(store, "T", body=b"b" * 11)
        assert store.appender.last_store_ms == stored_ms
    assert verify_store(tmp_path).findings == []  # the times of the checkpoint are right


@pytest.mark.parametrize(("count", "last_ms"), [(0, 0), (1, 7_000), (2, 7_500)])
def test_a_store_that_opens_has_the_time_of_its_newest_record(
    tmp_path: Path, count: int, last_ms: int
) -> None:
    clock = FakeClock(7_000)
    with open_store(tmp_path, clock) as store:
        for _ in range(count):
            put_one(store, "T")
            clock.advance(500)
    with open_store(tmp_path, clock) as store:
        assert store.appender.last_store_ms == last_ms
