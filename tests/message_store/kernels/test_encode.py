"""Grouping of rows by queue, and refused messages. Encoded records: `test_record`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_store import layout
from message_store.kernels import encode
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from tests.message_store.kernels import naive
from tests.support.stores import LOOPBACK

SLOTS = 6
row_columns = st.tuples(
    st.integers(0, SLOTS - 1),
    st.sampled_from([0, 0, 0, 13]),
    st.sampled_from([0, 0, 8, 4, 12]),
    st.integers(0, 1 << 50),
    st.integers(91, 1 << 20),
    st.integers(-(1 << 62), 1 << 62),
)


def rows_of(columns: list[tuple[int, ...]]) -> np.ndarray:
    rows, next_offset = np.zeros(len(columns), layout.PUT), [10 * slot for slot in range(SLOTS)]
    names = ("queue_slot", "status", "sys_flag", "phys_offset", "record_size", "tags_code")
    for row, values in zip(rows, columns, strict=True):
        for name, value in zip(names, values, strict=True):
            row[name] = value
        if row["status"] == 0 and encode.has_queue_offset(int(row["sys_flag"])):
            row["queue_offset"] = next_offset[values[0]]
            next_offset[values[0]] += 1
    return rows


@given(st.lists(row_columns, max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_group_units(columns: list[tuple[int, ...]], first: int, behind: int) -> None:
    rows = rows_of(columns)
    end = max(len(rows) - behind, first)
    first, end = min(first, len(rows)), min(end, len(rows))
    counts = np.zeros(SLOTS, np.int32)
    touched = np.zeros((max(end - first, 1), 4), np.int64)
    out = np.full(max(end - first, 1) * 20, 0xEE, np.uint8)
    blocks = encode.group_units(rows, first, end, counts, touched, out)
    expected = naive.group_units(rows[first:end])
    assert not counts.any()
    found = {}
    for slot, start, queue_offset, stop in touched[:blocks].tolist():
        found[slot] = (queue_offset, naive.leading_units(out[start * 20 : stop * 20].tobytes()))
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("body_len", "prop_len", "queue_id", "body_max", "record_max", "refused"),
    [
        (100, 10, 0, 100, 10_000, 0),
        (101, 10, 0, 100, 10_000, 1),
        (0, 32_767, 0, 100, 100_000, 0),
        (0, 32_768, 0, 100, 100_000, 1),
        (0, 0, -1, 100, 10_000, 1),
        (9, 0, 0, 100, 101, 0),
        (10, 0, 0, 100, 101, 1),
    ],
)
def test_messages_that_can_never_be_stored_are_refused(
    body_len: int, prop_len: int, queue_id: int, body_max: int, record_max: int, refused: int
) -> None:
    batch, topics = PutBatch(), TopicTable()
    index = topics.add("T")
    topics.slot(index, 0, create=True)
    batch.add(
        topic_index=index,
        queue_id=queue_id,
        body=b"x" * body_len,
        properties=b"p" * prop_len,
        born_ms=0,
        born_host=LOOPBACK,
        store_host=LOOPBACK,
    )
    at, total, count = encode.prepare(
        batch.rows, 1, batch.staging, topics.arrays, body_max, record_max
    )
    assert (at, count) == (1, refused)
    assert batch.rows[0]["status"] == (13 if refused else 0)
    assert total == (0 if refused else 91 + body_len + 1 + prop_len)


@pytest.mark.parametrize(
    ("rule", "text_len", "status", "informs"),
    [
        ("there is room for both times", 32_767 - 62, 0, True),
        ("without room they are left out", 32_767 - 61, 0, False),
        ("also when not a byte is left", 32_767, 0, False),
        ("a text that is too long alone is refused", 32_768, 13, False),
    ],
)
def test_informative_times_are_omitted_from_long_deliveries(
    rule: str, text_len: int, status: int, informs: bool
) -> None:
    batch, topics = PutBatch(), TopicTable()
    index = topics.add("T")
    topics.slot(index, 0, create=True)
    batch.add(
        topic_index=index,
        queue_id=0,
        body=b"x",
        properties=b"p" * (text_len - 1) + b"\x02",
        born_ms=0,
        born_host=LOOPBACK,
        store_host=LOOPBACK,
    )
    row = batch.rows[0]
    row["enqueue_ms"], row["dequeue_ms"] = 1_700_000_000_000, 1_700_000_000_001
    encode.prepare(batch.rows, 1, batch.staging, topics.arrays, 100, 100_000)
    assert row["status"] == status, rule
    assert (row["enqueue_ms"] >= 0, row["dequeue_ms"] >= 0) == (informs, informs), rule
    if not status:
        assert row["record_size"] == 91 + 1 + 1 + text_len + (62 if informs else 0)


@pytest.mark.parametrize("left", [0, 91, 99, 100, 108, 199, 200, 208, 400])
def test_a_record_leaves_room_for_the_blank_that_ends_its_file(left: int) -> None:
    batch, topics = PutBatch(), TopicTable()
    index = topics.add("T")
    topics.slot(index, 0, create=True)
    for _ in range(3):
        batch.add(
            topic_index=index,
            queue_id=0,
            body=b"12345678",
            properties=b"",
            born_ms=0,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
    encode.prepare(batch.rows, 3, batch.staging, topics.arrays, 100, 1_000)
    out = np.zeros(1_000, np.uint8)
    end, size, last = encode.encode(
        batch.rows, (0, 3), batch.staging, topics.arrays, out, 5_000, left, 1
    )
    fit = max(0, min(3, (left - 8) // 100))
    assert (end, size, last) == (fit, fit * 100, 5_000 + (fit - 1) * 100 if fit else -1)
    encode.revert_queue_offsets(batch.rows, 0, int(end), topics.arrays)
    assert topics.next_offset(0) == 0
