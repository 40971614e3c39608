"""Reading of the schedule queues: units and their due times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from delayed_delivery.records import first_log_offset
from message_store.layout import UNIT
from message_store.store import MessageStore
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.names import SCHEDULE_TOPIC
from schedule_service.queues import ScheduleQueues
from tests.support.stores import open_store, put_one


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
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
