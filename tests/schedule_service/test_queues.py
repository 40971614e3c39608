"""Reading of the schedule queues: units and their due times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.records import first_log_offset
from duemq_common.clock import FakeClock
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import UNIT
from message_store.store import MessageStore
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.queues import ScheduleQueues
from tests.support.stores import open_store, put_one


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[MessageStore]:
    with open_store(tmp_path, clock) as store:
        yield store


@pytest.fixture
def queues(store: MessageStore) -> ScheduleQueues:
    return ScheduleQueues(store, LevelHistory([LevelText(0, "1s 5s"), LevelText(150, "1s 9s")]))


def test_levels_are_those_that_have_a_queue(store: MessageStore, queues: ScheduleQueues) -> None:
    assert queues.levels == []
    put_one(store, SCHEDULE_TOPIC, 2)
    deep = put_one(store, SCHEDULE_TOPIC, 40)
    assert queues.levels == [3, 41]
    assert queues.bounds(3) == (0, 1)
    assert queues.bounds(9) == (0, 0)
    assert first_log_offset(store, SCHEDULE_TOPIC, 40, 0) == deep["phys_offset"]
    assert first_log_offset(store, SCHEDULE_TOPIC, 40, 1) is None


@pytest.mark.parametrize("code", [0, 2_598_919, -934_813_832, 2**31 - 1, -(2**31)])
def test_a_tag_hash_is_no_time(store: MessageStore, queues: ScheduleQueues, code: int) -> None:
    """The due time is computed from the record, with the delays of its time."""
    rows = [put_one(store, SCHEDULE_TOPIC, 1) for _ in range(3)]
    units = np.zeros(3, UNIT)
    units["phys_offset"] = [row["phys_offset"] for row in rows]
    units["tags_code"] = [code, 1_700_000_123_456, code]
    store_ms = int(rows[0]["store_ms"])
    expected = [store_ms + 5_000, 1_700_000_123_456, store_ms + 9_000]
    assert queues.due_ms(2, units).tolist() == expected
    assert units["tags_code"][0] == code  # the caller's block is unchanged


def test_a_tag_hash_without_a_record_is_due_at_once(queues: ScheduleQueues) -> None:
    units = np.zeros(1, UNIT)
    units["phys_offset"] = 10**9
    assert queues.due_ms(1, units).tolist() == [0]


def test_a_batch_has_the_units_of_one_level_table(store: MessageStore) -> None:
    offsets = [int(put_one(store, SCHEDULE_TOPIC, 1)["phys_offset"]) for _ in range(3)]
    history = LevelHistory([LevelText(0, "1s 5s"), LevelText(offsets[1], "1s 9s")])
    queues = ScheduleQueues(store, history)
    units = store.units(SCHEDULE_TOPIC, 1, 0, 3)
    first, delay_ms = queues.of_one_table(2, units)
    assert (first["phys_offset"].tolist(), delay_ms) == (offsets[:1], 5_000)
    rest, delay_ms = queues.of_one_table(2, units[1:])
    assert (rest["phys_offset"].tolist(), delay_ms) == (offsets[1:], 9_000)


LATER_MS = 40_000  # after the store time; the level of the history has 5 s


def put_unit(store: MessageStore, after_ms: int, **fields: Any) -> int:
    """Append a message of level 2 with a due time; return its store time."""
    row = put_one(store, SCHEDULE_TOPIC, 1, **fields)
    queue = store.queues.find(SCHEDULE_TOPIC, 1)
    assert queue is not None
    units = queue.read(int(row["queue_offset"]), 1)
    units["tags_code"] = row["store_ms"] + after_ms
    queue.rewrite(int(row["queue_offset"]), units)
    return int(row["store_ms"])


@pytest.mark.parametrize(
    ("after_ms", "now_ms", "corrected"),
    [
        (5_000 - 1, 4_999, True),
        (5_000 - 4_096, 904, True),
        (5_000 - (1 << 40), 0, True),
        (5_000 + 4_096, 9_096, False),  # late
        (3_000, 3_000, False),  # the delay that an Apache broker had
        (5_000 - (1 << 40), -1, False),  # a record of the future is itself damaged
    ],
)
def test_an_early_due_time_that_no_level_can_have_is_corrected(
    store: MessageStore,
    clock: FakeClock,
    queues: ScheduleQueues,
    after_ms: int,
    now_ms: int,
    corrected: bool,
) -> None:
    store_ms = put_unit(store, after_ms)
    clock.advance(now_ms)
    assert queues.corrected(2, 0) == corrected
    due_ms = store_ms + (5_000 if corrected else after_ms)
    assert store.units(SCHEDULE_TOPIC, 1, 0, 1)["tags_code"].tolist() == [due_ms]
    assert queues.compared_due_ms(2, 0) == due_ms


@pytest.mark.parametrize("after_ms", [3_000, 3_001])
def test_the_due_time_of_a_copied_record_is_its_property(
    store: MessageStore, queues: ScheduleQueues, after_ms: int
) -> None:
    start_ms = store.clock.now_ms()
    due_ms = {"DUEMQ_DUE_MS": str(start_ms + LATER_MS)}
    put_unit(store, after_ms, properties=due_ms, prepared_offset=-1)
    assert queues.corrected(2, 0)
    assert store.units(SCHEDULE_TOPIC, 1, 0, 1)["tags_code"].tolist() == [start_ms + LATER_MS]
    assert not queues.corrected(2, 0)


def test_a_unit_is_believed_if_the_disk_has_changed_its_record(
    store: MessageStore, queues: ScheduleQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_unit(store, 4_999)
    monkeypatch.setattr(store, "has_changed", lambda offset, size: True)
    assert not queues.corrected(2, 0)
    monkeypatch.setattr(store, "has_changed", lambda offset, size: None)
    assert queues.corrected(2, 0)


def test_a_corrected_unit_renews_the_checksum_of_its_block(
    store: MessageStore, queues: ScheduleQueues
) -> None:
    """Otherwise units with other delays, which an Apache broker had, would be written again."""
    store_ms = put_unit(store, 4_999)
    put_unit(store, 3_000)
    store.flush()
    assert queues.corrected(2, 0)
    assert queues.compared_due_ms(2, 1) == store_ms + 3_000
