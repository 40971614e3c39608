"""The put hook on batches."""

from __future__ import annotations

import pytest

from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.put_hook import STALE_PROPERTIES, LevelHook
from tests.support.stores import LOOPBACK


@pytest.fixture
def topics() -> TopicTable:
    return TopicTable()


@pytest.fixture
def hook(topics: TopicTable) -> LevelHook:
    return LevelHook(topics, LevelHistory([LevelText(0, "1s 5s")]))


def batch_of(
    topics: TopicTable,
    properties: list[tuple[str, str]],
    topic: str = "T",
    queue_id: int = 3,
    sys_flag: int = 0,
) -> PutBatch:
    batch = PutBatch(4, 1)
    text = b"".join(f"{k}\x01{v}\x02".encode() for k, v in properties)
    batch.add(
        topic_index=topics.add(topic),
        queue_id=queue_id,
        body=b"b",
        properties=text,
        born_ms=1,
        born_host=LOOPBACK,
        store_host=LOOPBACK,
        sys_flag=sys_flag,
    )
    return batch


@pytest.mark.parametrize(
    ("level", "held", "delay_ms"),
    [("1", 1, 1_000), ("2", 2, 5_000), ("3", 2, 5_000), ("2147483647", 2, 5_000), ("+1", 1, 1_000)],
)
@pytest.mark.parametrize("sys_flag", [0, 1, 8])
def test_a_level_goes_to_the_schedule_topic(
    topics: TopicTable, hook: LevelHook, level: str, held: int, delay_ms: int, sys_flag: int
) -> None:
    batch = batch_of(topics, [("KEYS", "k"), ("DELAY", level)], sys_flag=sys_flag)
    hook(batch, 5)
    row = batch.rows[0]
    assert topics.name(int(row["topic_index"])) == SCHEDULE_TOPIC
    assert topics.name(int(row["real_topic_index"])) == "T"
    assert (row["queue_id"], row["real_queue_id"], row["due_delay_ms"]) == (held - 1, 3, delay_ms)
    expected = str(held) if int(level) > 2 else level
    assert batch.properties(0) == {"KEYS": "k", "DELAY": expected}


@pytest.mark.parametrize(
    ("properties", "topic", "sys_flag"),
    [
        ([], "T", 0),
        ([("DELAY", "0")], "T", 0),
        ([("DELAY", "-1")], "T", 0),
        ([("TIMER_DELAY_SEC", "5")], "T", 0),
        ([("DELAY", "1")], "T", layout.SYS_PREPARED),
        ([("DELAY", "1")], "T", layout.SYS_ROLLBACK),
        ([("DELAY", "1")], HALF_TOPIC, 0),
    ],
)
def test_other_messages_are_unchanged(
    topics: TopicTable,
    hook: LevelHook,
    properties: list[tuple[str, str]],
    topic: str,
    sys_flag: int,
) -> None:
    batch = batch_of(topics, properties, topic, sys_flag=sys_flag)
    hook(batch, 5)
    row = batch.rows[0]
    assert topics.name(int(row["topic_index"])) == topic
    assert (row["real_topic_index"], row["due_delay_ms"], row["status"]) == (-1, -1, 0)
    assert batch.properties(0) == dict(properties)


@pytest.mark.parametrize("level", ["abc", "1.5", "0x1", "2147483648", "99999999999", "1 "])
def test_a_level_that_is_no_number_is_refused(
    topics: TopicTable, hook: LevelHook, level: str
) -> None:
    batch = batch_of(topics, [("DELAY", level)])
    hook(batch, 5)
    assert batch.rows[0]["status"] == 13
    assert repr(level) in batch.remarks[0]
    assert "is not a whole number of 32 bits; levels are 1 to 2" in batch.remarks[0]


@pytest.mark.parametrize("name", STALE_PROPERTIES)
def test_a_level_overrides_timers_and_earlier_delays(
    topics: TopicTable, hook: LevelHook, name: str
) -> None:
    batch = batch_of(topics, [("TAGS", "A"), (name, "7"), ("DELAY", "2")])
    hook(batch, 5)
    assert batch.properties(0) == {"TAGS": "A", "DELAY": "2"}
    row = batch.rows[0]
    assert topics.name(int(row["topic_index"])) == SCHEDULE_TOPIC
    assert (row["timer_kind"], row["tags_hash"]) == (layout.TIMER_NONE, 65)


def test_a_scheduled_record_is_not_scheduled_again(topics: TopicTable, hook: LevelHook) -> None:
    pairs = [("DELAY", "2"), ("REAL_TOPIC", "T"), ("REAL_QID", "0")]
    batch = batch_of(topics, pairs, SCHEDULE_TOPIC, queue_id=1)
    hook(batch, 5)
    row = batch.rows[0]
    assert (row["real_topic_index"], row["queue_id"], row["due_delay_ms"]) == (-1, 1, 5_000)
    assert batch.properties(0) == dict(pairs)


def test_a_row_refused_before_is_unchanged(topics: TopicTable, hook: LevelHook) -> None:
    batch = batch_of(topics, [("DELAY", "x")])
    batch.refuse(0, 16, "no permission")
    hook(batch, 5)
    assert (int(batch.rows[0]["status"]), batch.remarks) == (16, {0: "no permission"})


def test_a_batch_larger_than_any_before(topics: TopicTable, hook: LevelHook) -> None:
    batch = PutBatch(8, 1)
    for _ in range(3_000):
        batch.add(
            topic_index=topics.add("T"),
            queue_id=0,
            body=b"",
            properties=b"DELAY\x019\x02",
            born_ms=1,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
    hook(batch, 5)
    assert (batch.filled["due_delay_ms"] == 5_000).all()
    assert batch.properties(2_999) == {"DELAY": "2"}
