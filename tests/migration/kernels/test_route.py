"""The routing kernel compared with a naive implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duemq_migration.kernels import route as kernels
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.queues.topic_table import TopicTable
from tests.support.stores import LOOPBACK

NOW_MS, PRECISION_MS = 1_700_000_000_123, 100
TOPICS = ("T", "U", TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC)
DELAYS = np.array([-1, 1_000, -1, 5_000], np.int64)  # levels 1 and 3 are routed
RULES = np.array([[3, 1, 77]], np.int64)  # level 3 to U
LONG = {"A": "too long"}
EXTRAS: tuple[dict[str, str], ...] = (
    {},
    {"KEYS": "k"},
    {"DELAy": "1"},
    {"TIMER_DELAY_MS": "5"},
    {"TIMER_OUT_MS": "1"},
    {"REAL_TOPIC": "T"},
    {"TIMER_DEL_UNIQKEY": "T+k"},
    LONG,
    {"DUEMQ_DUE_MS": "1"},
)


def text_of(extra: dict[str, str]) -> dict[str, str]:
    """Return properties; long ones are generated here to keep failing examples short."""
    return {"A": "x" * 32_600} if extra == LONG else extra


def expected(topic: str, level: str, extra: dict[str, str], sys_flag: int) -> tuple[int, int]:
    """Return (outcome, delay) of a message."""
    digits = level.lstrip("-").isdigit()
    number = int(level) if digits else 0
    if number <= 0 or topic not in ("T", "U") or sys_flag & 0xC in (4, 12):
        return kernels.UNCHANGED, 0
    delay_ms = int(DELAYS[min(number, 3)])
    if delay_ms < 0 or "TIMER_DEL_UNIQKEY" in extra:
        return kernels.UNCHANGED, 0
    if number > 3 or extra.keys() & {
        "TIMER_DELAY_MS",
        "TIMER_OUT_MS",
        "REAL_TOPIC",
        "DUEMQ_DUE_MS",
    }:
        return kernels.UNHANDLED, 0
    if "DELAy" in extra or "A" in extra:
        return kernels.UNCHANGED, 0
    return kernels.ROUTED, 77 if (number, topic) == (3, "U") else delay_ms


messages = st.tuples(
    st.sampled_from(TOPICS),
    st.sampled_from(["0", "1", "2", "3", "9", "-1", "x"]),
    st.sampled_from(EXTRAS),
    st.sampled_from([0, 4, 8, 12]),
)


@given(st.lists(messages, min_size=1, max_size=12))
def test_route(rows: list[Any]) -> None:
    topics, batch = TopicTable(), PutBatch(12)
    index = {name: topics.add(name) for name in TOPICS}
    for topic, level, extra, sys_flag in rows:
        batch.add(
            topic_index=index[topic],
            queue_id=2,
            body=b"b",
            born_ms=1,
            born_host=LOOPBACK,
            properties=encode_properties({**text_of(extra), "DELAY": level}),
            store_host=LOOPBACK,
            sys_flag=sys_flag,
        )
    before = batch.filled.copy()
    numbers = np.array(
        [index[TIMER_TOPIC], index[SCHEDULE_TOPIC], index[HALF_TOPIC], NOW_MS, PRECISION_MS],
        np.int64,
    )
    report = np.zeros(12, np.uint8)
    found = kernels.route(
        batch.rows, batch.count, batch.staging, topics.arrays.topics, DELAYS, RULES, numbers, report
    )
    outcomes = [expected(*one) for one in rows]
    assert report[: len(rows)].tolist() == [outcome for outcome, _ in outcomes]
    assert found == tuple(
        sum(outcome == kind for outcome, _ in outcomes)
        for kind in (kernels.ROUTED, kernels.UNHANDLED)
    )
    for at, (outcome, delay_ms) in enumerate(outcomes):
        row, properties = batch.rows[at], batch.properties(at)
        if outcome != kernels.ROUTED:
            assert row == before[at]
            assert properties["DELAY"] == rows[at][1]
            continue
        assert properties == {**text_of(rows[at][2]), "DELAy": rows[at][1]}
        assert (row["topic_index"], row["queue_id"]) == (index[TIMER_TOPIC], 0)
        assert (row["real_topic_index"], row["real_queue_id"]) == (index[rows[at][0]], 2)
        assert (row["due_ms"], row["due_delay_ms"]) == (NOW_MS + delay_ms, delay_ms)
        assert row["out_ms"] == (NOW_MS + delay_ms - 1) // PRECISION_MS * PRECISION_MS
        assert row["delay_level"] == 0
