"""Target of a record, and the deliverer's limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from delayed_delivery.outcome import NOT_PUT
from delayed_delivery.redirected import NoTarget
from duemq_common.topics import HALF_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC
from message_store import layout
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable
from schedule_service.deliverer import Deliverer, target_of
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.queues import ScheduleQueues
from tests.support.level_rig import level_service

HISTORY = LevelHistory([LevelText(0, "1s 5s")])
HOST = (b"\x7f\0\0\1", 1)


def record(topic: str = SCHEDULE_TOPIC, queue_id: int = 2, **properties: str) -> Record:
    text = b"".join(f"{k}\x01{v}\x02".encode() for k, v in properties.items())
    numbers = (0, 0, 0, queue_id, 0, 0, 0, 0, 0)
    return Record(*numbers, HOST, 0, HOST, 0, 0, b"", topic, text)


@pytest.fixture
def topics() -> TopicTable:
    table = TopicTable()
    table.set_routing("T", write_queues=4, read_queues=4, perm=6)
    for name in ("unrouted", SCHEDULE_TOPIC, HALF_TOPIC):
        table.add(name)
    return table


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"REAL_TOPIC": "T", "REAL_QID": "3"}, ("T", 3)),
        ({"REAL_TOPIC": "T", "REAL_QID": "+3"}, ("T", 3)),
        ({"REAL_TOPIC": "T", "REAL_QID": "65535"}, ("T", 65_535)),
        ({"REAL_TOPIC": "T", "REAL_QID": "65536"}, "no_target"),
        ({"REAL_TOPIC": "T", "REAL_QID": "-1"}, "no_target"),
        ({"REAL_TOPIC": "T"}, "no_target"),
        ({"REAL_QID": "3"}, "no_target"),
        ({"REAL_TOPIC": SCHEDULE_TOPIC, "REAL_QID": "3"}, "no_target"),
        ({"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"}, "half_message"),
        ({"REAL_TOPIC": "never seen", "REAL_QID": "0"}, "topic_missing"),
        ({"REAL_TOPIC": "unrouted", "REAL_QID": "0"}, "topic_missing"),
    ],
)
def test_target(
    topics: TopicTable, properties: dict[str, str], expected: str | tuple[str, int]
) -> None:
    found = target_of(record(**properties), topics, 3, routed=True)
    if isinstance(found, NoTarget):
        assert found.reason == expected
    else:
        assert (topics.name(found[0]), found[1]) == expected


def test_without_routing_every_known_topic_exists(topics: TopicTable) -> None:
    found = target_of(record(REAL_TOPIC="unrouted", REAL_QID="0"), topics, 3, routed=False)
    assert not isinstance(found, NoTarget)


@pytest.mark.parametrize(("topic", "queue_id"), [("T", 2), (SCHEDULE_TOPIC, 1)])
def test_a_record_of_another_queue_is_not_delivered(
    topics: TopicTable, topic: str, queue_id: int
) -> None:
    found = target_of(record(topic, queue_id, REAL_TOPIC="T", REAL_QID="0"), topics, 3, routed=True)
    assert isinstance(found, NoTarget)
    assert found.reason == "wrong_record"


def test_units_without_a_record_and_blanks(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            good = rig.send(1, b"good").rows[0].copy()
            units = np.zeros(5, layout.UNIT)
            units[0] = (0, 0, 0x7FFFFFFF, 0)  # a pre-blank has no message
            units[1] = (10**9, 0, 100, 0)  # behind the log's end
            units[2] = (int(good["phys_offset"]) + 1, 0, int(good["record_size"]), 0)
            units[3] = (int(good["phys_offset"]), 0, int(good["record_size"]), 0)
            units[4] = (int(good["phys_offset"]), 0, int(good["record_size"]) - 1, 0)
            deliverer = Deliverer(rig.store, ScheduleQueues(rig.store, HISTORY))
            result = deliverer.deliver_batch(1, 0, units, rig.clock.now_ms())
            assert (result.done, result.lost, result.refusal) == (5, 0, "")
            assert np.flatnonzero(result.store_ms != NOT_PUT).tolist() == [3]
            assert [item.queue_offset for item in result.quarantined] == [1, 2, 4]
            reasons = [r.properties["DUEMQ_REASON"] for r in rig.records(QUARANTINE_TOPIC)]
            assert reasons == ["unreadable"] * 3
            bodies = [len(r.body) for r in rig.records(QUARANTINE_TOPIC)]
            assert bodies[0] == 0

    asyncio.run(steps())
