"""Sums of records and units: equal for real stores, different for each fault of a unit."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_store.layout import SCANNED
from spark_reconciliation.kernels.places import add_records, add_units
from spark_reconciliation.scan.roles import Role
from tests.support.extended import examples
from tests.support.golden_stores import STORES, GoldenStore, golden_store
from tests.support.plain_store import SCHEDULE, PlainStore, copy_sparse
from tests.support.read_tables import read_rows

pytestmark = pytest.mark.finding("3P2")
WORD = 1 << 64


def place(phys_offset: int, number: int, size: int) -> int:
    """Return the hash of a place; the naive one of `kernels.places.place`."""
    value = phys_offset * 0x9E3779B97F4A7C15 % WORD
    value = (value ^ (value >> 32) ^ number) * 0xC2B2AE3D27D4EB4F % WORD
    value = (value ^ (value >> 29) ^ size) * 0x165667B19E3779F9 % WORD
    return value ^ (value >> 32)


numbers = st.integers(0, 3)
records = st.tuples(numbers, numbers, st.integers(0, 1 << 40), st.sampled_from([0, 4, 8, 12, 0x80]))


@settings(max_examples=examples(50))
@given(rows=st.lists(records, max_size=40), slots=st.sampled_from([2, 8, 64]))
def test_the_kernels_equal_the_naive_sums(
    rows: list[tuple[int, int, int, int]], slots: int
) -> None:
    scanned, naive = np.zeros(len(rows), SCANNED), defaultdict[int, int](int)
    for n, (topic, queue, phys_offset, sys_flag) in enumerate(rows):
        facts = {
            "topic_index": topic,
            "queue_id": queue,
            "phys_offset": phys_offset,
            "queue_offset": n,
            "record_size": 100 + n,
            "sys_flag": sys_flag,
        }
        for name, value in facts.items():
            scanned[n][name] = value
        if sys_flag in (0, 8):
            naive[topic << 32 | queue] ^= place(phys_offset, n, 100 + n)
    found, read_rows = defaultdict[int, int](int), 0
    while read_rows < len(rows):  # a full table is emptied
        keys, sums = np.full(slots, -1, np.int64), np.zeros(slots, np.uint64)
        read_rows += int(add_records(scanned[read_rows:], keys, sums))
        for key, total in zip(keys.tolist(), sums.tolist(), strict=True):
            if key >= 0:
                found[key] ^= total
    assert found == naive
    plain = [row for row in scanned if row["sys_flag"] in (0, 8)]
    at, number, size = [
        np.array([row[name] for row in plain], np.int64)
        for name in ("phys_offset", "queue_offset", "record_size")
    ]
    whole = 0
    for value in naive.values():
        whole ^= value
    assert int(add_units(at, number, size, 0)) == whole
    assert int(add_units(at, number, size, 1 << 50)) == 0


def differing(root: Path) -> set[tuple[str, int]]:
    """Return the queues whose sums differ."""
    rows = read_rows(
        root, "messages", "role", "topic", "queue_id", "identity", roles=str(Role.QUEUE)
    )
    sums = defaultdict[tuple[str, int], int](int)
    for row in rows:
        sums[row["topic"], row["queue_id"]] ^= row["identity"]
    return {queue for queue, total in sums.items() if total}


@pytest.mark.parametrize("store", STORES, ids=str)
def test_queues_of_brokers_agree_with_their_records(store: GoldenStore) -> None:
    assert differing(golden_store(store.name)) == set()
    assert all(row["fault"] is None for row in read_rows(golden_store(store.name), "consume_queue"))


@pytest.fixture
def store(tmp_path: Path) -> PlainStore:
    return PlainStore(copy_sparse(golden_store("apache-5.3.3-clean"), tmp_path / "store"))


FAULTS = {
    "size": "is not {size} bytes long",
    "tags code": "tags code",
    "second unit": "has another queue offset",
    "foreign unit": "is of another topic",
    "other offset": "there is no record",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_unit_that_does_not_agree_with_its_record(store: PlainStore, fault: str) -> None:
    own = [key for key in store.queues() if key[0] != SCHEDULE and len(store.units(*key)) > 2]
    topic, queue = own[0]
    other, foreign = next(key for key in own if key[0] != topic and key[1] == queue)
    units = store.units(topic, queue)
    number = max(units) - 1
    at, size, code = units[number]
    place, unit = {
        "size": ((topic, queue, number), (at, size + 1, code)),
        "tags code": ((topic, queue, number), (at, size, code + 1)),
        "second unit": ((topic, queue, max(units) + 1), (at, size, code)),
        "foreign unit": ((other, foreign, 0), (at, size, code)),
        "other offset": ((topic, queue, number), (at + 7, size, code)),
    }[fault]
    store.put_unit(*place, unit)
    rows = [row for row in read_rows(store.root, "consume_queue") if row["fault"]]
    assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows] == [place]
    assert FAULTS[fault].format(size=size + 1) in rows[0]["fault"]
    if fault != "tags code":  # compared with each delivery, see `delivery_units`
        assert differing(store.root) == {place[:2]}
