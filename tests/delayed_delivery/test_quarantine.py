"""Properties of a quarantined message."""

from __future__ import annotations

import pytest

from delayed_delivery.quarantine import (
    DETAIL_CHARS_MAX,
    NO_HOST,
    Reason,
    Undeliverable,
    origin_of,
    quarantine,
)
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable

HOST = (b"\x0a\0\0\1", 77)
TEXT = b"KEYS\x01k\x02UNIQ_KEY\x01U\x02REAL_TOPIC\x01T\x02REAL_QID\x013\x02TAGS\x01A\x02"
RECORD = Record(0, 0, 0, 2, 0, 5, 300, 0, 42, HOST, 43, HOST, 6, 0, b"body", "S", TEXT)


def row_of(item: Undeliverable) -> PutBatch:
    topics, batch = TopicTable(), PutBatch(1, 1)
    quarantine(batch, topics, item, now_ms=99)
    assert topics.name(int(batch.rows[0]["topic_index"])) == QUARANTINE_TOPIC
    return batch


def test_all_known_facts_are_kept() -> None:
    item = Undeliverable(Reason.TOPIC_MISSING, "no T", 300, 3, 5, RECORD, b"raw")
    batch = row_of(item)
    assert batch.properties(0) == {
        "KEYS": "k",
        "UNIQ_KEY": "U",
        "DUEMQ_TOPIC": "T",
        "DUEMQ_QUEUE_ID": "3",
        "DUEMQ_REASON": "topic_missing",
        "DUEMQ_DETAIL": "no T",
        "DUEMQ_LEVEL": "3",
        "DUEMQ_QUEUE_OFFSET": "5",
        "DUEMQ_PHYS_OFFSET": "300",
    }
    row = batch.rows[0]
    assert (row["prepared_offset"], row["born_ms"], row["reconsume_times"]) == (-301, 42, 6)
    assert (row["born_port"], batch.body(0)) == (77, b"raw")


def test_an_unreadable_record() -> None:
    batch = row_of(Undeliverable(Reason.UNREADABLE, "x" * 9_000, 7, 1, 0))
    assert batch.body(0) == b""
    assert batch.rows[0]["born_ms"] == 99
    assert batch.rows[0]["born_port"] == NO_HOST[1]
    assert len(batch.properties(0)["DUEMQ_DETAIL"]) == DETAIL_CHARS_MAX


def test_a_timer_shows_its_due_time_instead_of_its_level() -> None:
    batch = row_of(Undeliverable(Reason.UNREADABLE, "why", 7, 0, -1, due_ms=1_700_000_000_123))
    assert batch.properties(0) == {
        "DUEMQ_REASON": "unreadable",
        "DUEMQ_DETAIL": "why",
        "DUEMQ_DUE_MS": "1700000000123",
        "DUEMQ_PHYS_OFFSET": "7",
    }


def test_the_bytes_can_be_omitted() -> None:
    item = Undeliverable(Reason.ILLEGAL, "too long", 7, 1, 0, RECORD, b"raw")
    assert item.with_data(b"").data == b""
    assert item.with_data(b"").record is RECORD


@pytest.mark.parametrize("phys_offset", [0, 1, 2**62])
def test_an_origin_is_below_zero_and_can_be_read_back(phys_offset: int) -> None:
    assert origin_of(phys_offset) < 0
    assert -(origin_of(phys_offset) + 1) == phys_offset
