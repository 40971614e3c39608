"""The saved projection of the journal, and journals with damaged records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery import ownership
from delayed_delivery.ownership import OwnershipRecord, Return, Route, StateRecord, Transfer
from delayed_delivery.ownership_projection import JournalProjection
from duemq_common.topics import OWNERSHIP_TOPIC
from duemq_migration.ownership import projection
from message_store import ranges
from tests.support.stores import open_store, put_one

RECORDS: list[OwnershipRecord] = [
    StateRecord(migration="m", level=3, source="planned", target="routing", operator="me", why="ü"),
    Route(migration="m", level=3, on=True, fence=7, timer_fence=2, rules={"T": 5_000}),
    Transfer(
        migration="m",
        level=3,
        first=0,
        end=9,
        excluded=((2, 3), (5, 7)),
        count=6,
        checksum=1,
        promised={4: 1 << 50},
    ),
    Return(
        migration="m",
        level=3,
        first=4,
        end=9,
        pending=((7, 9),),
        count=2,
        checksum=3,
        gone=1,
        gone_sum=4,
    ),
    Route(migration="m", level=3, on=False),
]
some_ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def as_set(some: list[tuple[int, int]]) -> set[int]:
    return {number for first, end in some for number in range(first, end)}


@given(some_ranges, some_ranges)
def test_ranges_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    a, b = ranges.joined(one), ranges.joined(other)
    assert as_set(a) == as_set(one)
    assert as_set(ranges.plus(a, b)) == as_set(a) | as_set(b)
    assert as_set(ranges.minus(a, b)) == as_set(a) - as_set(b)
    assert as_set(ranges.within(a, 5, 20)) == as_set(a) & set(range(5, 20))
    assert set(np.flatnonzero(ranges.mask_of(a, 0, 30))) == as_set(a)
    for found in (a, ranges.plus(a, b), ranges.minus(a, b)):
        assert found == ranges.joined(found)


@pytest.mark.parametrize("record", RECORDS)
def test_records_round_trip(record: OwnershipRecord) -> None:
    assert ownership.decode(ownership.encode(record)) == record


def test_the_projection_with_and_without_its_file(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for record in RECORDS[:3]:
            ownership.append(store, record, 5)
        first = projection.restore(store)
        level = first.levels[3]
        assert (level.state, level.routed, level.transferred, level.rules) == (
            "routing",
            True,
            6,
            {"T": 5_000},
        )
        projection.write(store, first)
        assert projection.restore(store) == first
        for record in RECORDS[3:]:
            ownership.append(store, record, 6)
        later = projection.restore(store)
        assert (later.levels[3].routed, later.levels[3].returned, later.levels[3].gone) == (
            False,
            2,
            1,
        )
        store.config_path(projection.PROJECTION_FILE).unlink()
        assert projection.restore(store) == later
        projection.write(store, JournalProjection(next_offset=99, log_offset=store.max_offset + 1))
        assert projection.restore(store) == later  # beyond the end of the log


def test_a_projection_whose_last_record_is_another_one_in_this_log_is_not_used(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path / "a") as store:
        ownership.append(store, RECORDS[0], 5)
        of_another_log = projection.restore(store)
        assert of_another_log.levels
    with open_store(tmp_path / "b") as store:
        put_one(store, "T", 0, b"at the same log offset")
        projection.write(store, of_another_log)
        assert projection.restore(store) == JournalProjection()


@pytest.mark.finding("3D4")
def test_a_changed_projection_is_derived_from_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path) as store:
        for record in RECORDS[:3]:
            ownership.append(store, record, 5)
        whole = projection.restore(store)
        projection.write(store, whole)
        path = store.config_path(projection.PROJECTION_FILE)
        text = path.read_text()
        path.write_text(text.replace('"routing"', '"done"'))
        assert path.read_text() != text
        assert projection.restore(store) == whole
        assert "another program has changed" in caplog.text


def test_a_damaged_record_is_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(tmp_path) as store:
        entries = [ownership.append(store, record, 5) for record in RECORDS]
        store.log.files[0].write(entries[1].phys_offset + 120, b"\0\0\0")
        assert [found.queue_offset for found in ownership.read(store)] == [0, 2, 3, 4]
        assert [found.record for found in ownership.read(store, 3)] == RECORDS[3:]
        assert (
            f"{OWNERSHIP_TOPIC}: skipped 1 records from queue offset 0 on, which are not"
            in caplog.text
        )
        assert "queue offset 1: commit log offset 212: the body does not match" in caplog.text
