"""The put hook on batches: delayed, unchanged and refused messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.queues.topic_table import TopicTable
from tests.support.stores import LOOPBACK
from tests.timer_store.kernels import naive
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.kernels.enqueue import GROWTH_BYTES
from timer_store.names import STALE_NAMES

NOW = 1_700_000_000_123
MAX_MS = 259_200_000
DELIVERED = {
    "TIMER_OUT_MS": "1699999999000",
    "REAL_TOPIC": "T",
    "REAL_QID": "0",
    "TIMER_ENQUEUE_MS": "1",
    "TIMER_DEQUEUE_MS": "2",
    "TIMER_ROLL_TIMES": "3",
    "DUEMQ_DUE_MS": "4",
}
DIRECT = {"TIMER_OUT_MS": str(NOW + 5_000), "REAL_TOPIC": "T", "REAL_QID": "3"}


@pytest.fixture
def topics() -> TopicTable:
    table = TopicTable()
    for name in ("%RETRY%g", "%DLQ%g", "T", "U"):
        table.add(name)
    return table


def hook_of(
    topics: TopicTable,
    config: TimerConfig | None = None,
    counts: dict[int, int] | None = None,
    pending: dict[str, int] | None = None,
    **settings: int,
) -> TimerHook:
    waiting = Counter(counts)
    return TimerHook(
        topics,
        config or TimerConfig(**settings),
        lambda time_ms: waiting[time_ms],
        pending_of=(lambda index: pending[topics.name(index)]) if pending else None,
    )


def add(
    topics: TopicTable,
    batch: PutBatch,
    properties: bytes | dict[str, str],
    topic: str = "T",
    queue_id: int = 3,
    sys_flag: int = 0,
) -> int:
    text = properties
    if not isinstance(text, bytes):
        text = b"".join(f"{name}\x01{value}\x02".encode() for name, value in properties.items())
    return batch.add(
        topic_index=topics.add(topic),
        queue_id=queue_id,
        body=b"b",
        properties=text,
        born_ms=1,
        born_host=LOOPBACK,
        store_host=LOOPBACK,
        sys_flag=sys_flag,
    )


def held(topics: TopicTable, row: np.void) -> tuple[str | int, ...]:
    """Return (topic, queue, real topic, real queue, TIMER_OUT_MS) of a row."""
    real = int(row["real_topic_index"])
    return (
        topics.name(int(row["topic_index"])),
        int(row["queue_id"]),
        topics.name(real) if real >= 0 else "",
        int(row["real_queue_id"]),
        int(row["out_ms"]),
    )


@pytest.mark.parametrize(
    ("rule", "properties", "out_ms"),
    [
        ("seconds from now", {"TIMER_DELAY_SEC": "10"}, 1_700_000_010_000),
        ("ms from now", {"TIMER_DELAY_MS": "10"}, 1_700_000_000_000),
        ("a time", {"TIMER_DELIVER_MS": "1700000100001"}, 1_700_000_100_000),
        (
            "an exact multiple loses a slot",
            {"TIMER_DELIVER_MS": "1700000100000"},
            1_700_000_099_000,
        ),
        (
            "one ms before it is in the same slot",
            {"TIMER_DELIVER_MS": "1700000099999"},
            1_700_000_099_000,
        ),
        (
            "seconds win",
            {"TIMER_DELAY_MS": "1", "TIMER_DELAY_SEC": "10", "TIMER_DELIVER_MS": "1"},
            1_700_000_010_000,
        ),
        (
            "ms win over a time",
            {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "10000"},
            1_700_000_010_000,
        ),
        ("the longest delay", {"TIMER_DELAY_SEC": "259200"}, NOW - 123 + MAX_MS),
        ("the next ms", {"TIMER_DELIVER_MS": str(NOW + 1)}, 1_700_000_000_000),
        ("a marker", {"TIMER_DEL_UNIQKEY": "T+U", "TIMER_DELAY_SEC": "10"}, 1_700_000_010_000),
    ],
)
@pytest.mark.parametrize("sys_flag", [0, 1, layout.SYS_COMMIT])
def test_a_future_time_delays_the_message(
    topics: TopicTable, rule: str, properties: dict[str, str], out_ms: int, sys_flag: int
) -> None:
    batch = PutBatch(4, 1)
    add(topics, batch, properties, sys_flag=sys_flag)
    hook_of(topics)(batch, NOW)
    row = batch.rows[0]
    assert held(topics, row) == (TIMER_TOPIC, 0, "T", 3, out_ms), rule
    assert (row["status"], row["due_ms"], row["due_delay_ms"]) == (0, -1, -1)
    assert batch.properties(0) == properties


@pytest.mark.parametrize(
    ("precision_ms", "due_ms", "out_ms"),
    [
        (100, 1_700_000_000_200, 1_700_000_000_100),
        (100, 1_700_000_000_201, 1_700_000_000_200),
        (500, 1_700_000_000_501, 1_700_000_000_500),
        (200, 1_700_000_001_000, 1_700_000_000_800),
    ],
)
def test_times_are_rounded_down_to_the_precision(
    topics: TopicTable, precision_ms: int, due_ms: int, out_ms: int
) -> None:
    batch = PutBatch(4, 1)
    add(topics, batch, {"TIMER_DELIVER_MS": str(due_ms)})
    hook_of(topics, precision_ms=precision_ms)(batch, NOW)
    assert int(batch.rows[0]["out_ms"]) == out_ms


@pytest.mark.parametrize(
    ("rule", "properties", "topic", "sys_flag"),
    [
        ("no time", {"KEYS": "k"}, "T", 0),
        ("now", {"TIMER_DELIVER_MS": str(NOW)}, "T", 0),
        ("long ago", {"TIMER_DELIVER_MS": "5"}, "T", 0),
        ("before 1970", {"TIMER_DELIVER_MS": "-999999999999999999"}, "T", 0),
        ("a delay of nothing", {"TIMER_DELAY_SEC": "0"}, "T", 0),
        ("a negative delay", {"TIMER_DELAY_SEC": "-999999999999999999"}, "T", 0),
        ("a prepared message", {"TIMER_DELAY_SEC": "9"}, "T", layout.SYS_PREPARED),
        ("a rollback", {"TIMER_DELAY_SEC": "9"}, "T", layout.SYS_ROLLBACK),
        ("a half message", {"TIMER_DELAY_SEC": "9"}, HALF_TOPIC, 0),
        ("a schedule record", {"TIMER_DELAY_SEC": "9"}, SCHEDULE_TOPIC, 0),
        ("a retry of a timer", {"TIMER_DELAY_SEC": "9"} | DELIVERED, "%RETRY%g", 0),
        ("a dead letter of a timer", {"TIMER_DELAY_SEC": "9"} | DELIVERED, "%DLQ%g", 0),
        ("a marker without a time", {"TIMER_DEL_UNIQKEY": "T+U"}, "T", 0),
        ("sent again, without a time", DELIVERED, "T", 0),
        ("sent again, with its time", {"TIMER_DELIVER_MS": "1699999999500"} | DELIVERED, "T", 0),
    ],
)
def test_other_messages_are_unchanged(
    topics: TopicTable, rule: str, properties: dict[str, str], topic: str, sys_flag: int
) -> None:
    batch = PutBatch(4, 1)
    add(topics, batch, properties, topic, sys_flag=sys_flag)
    hook_of(topics)(batch, NOW)
    row = batch.rows[0]
    assert held(topics, row) == (topic, 3, "", 0, -1), rule
    assert row["status"] == 0
    assert batch.properties(0) == properties


@pytest.mark.finding("3U5")
@pytest.mark.parametrize(
    ("rule", "properties", "reason"),
    [
        ("no number", {"TIMER_DELAY_SEC": "soon"}, "TIMER_DELAY_SEC=soon is not a whole number"),
        ("the first decides", {"TIMER_DELAY_SEC": "1.5", "TIMER_DELIVER_MS": "9"}, "=1.5"),
        ("more digits than a number has", {"TIMER_DELIVER_MS": "9" * 19}, "18 digits"),
        (
            "one second too far",
            {"TIMER_DELAY_SEC": "259201"},
            "the max delay 259200000ms (3 days, timerMaxDelaySec)",
        ),
        ("an overflow in ms", {"TIMER_DELAY_SEC": "9" * 18}, "the max delay 259200000ms"),
        ("a time in the year 31 million", {"TIMER_DELIVER_MS": "9" * 18}, "timerMaxDelaySec"),
        (
            "a marker for the past",
            {"TIMER_DELIVER_MS": "5", "TIMER_DEL_UNIQKEY": "T+U"},
            "no message to cancel",
        ),
    ],
)
def test_impossible_delays_are_refused_with_code_13_and_the_maximum(
    topics: TopicTable, rule: str, properties: dict[str, str], reason: str
) -> None:
    batch = PutBatch(4, 1)
    add(topics, batch, properties)
    hook_of(topics)(batch, NOW)
    assert batch.rows[0]["status"] == 13, rule
    assert reason in batch.remarks[0]
    assert f"{MAX_MS}ms" in batch.remarks[0]


def test_any_delay_is_allowed_without_a_configured_maximum(topics: TopicTable) -> None:
    batch = PutBatch(4, 1)
    for requested in ("9" * 18, "9" * 17):
        add(topics, batch, {"TIMER_DELIVER_MS": requested})
    hook_of(topics, max_delay_s=10**15 - 1)(batch, NOW)
    assert batch.rows[0]["out_ms"] == 10**18 - 1_000
    hook_of(topics, max_delay_s=10**15 - 1, spread_ms=1)(batch, NOW)
    assert batch.rows[1]["out_ms"] == 10**17 - 1_000


def test_a_new_time_on_a_received_timer_is_obeyed(topics: TopicTable) -> None:
    """T21: Apache delivers it at once, because TIMER_OUT_MS is set."""
    batch = PutBatch(4, 1)
    add(topics, batch, DELIVERED | {"KEYS": "k", "TIMER_DELAY_SEC": "10"})
    hook_of(topics)(batch, NOW)
    assert held(topics, batch.rows[0]) == (TIMER_TOPIC, 0, "T", 3, 1_700_000_010_000)
    assert batch.properties(0) == {"KEYS": "k", "TIMER_DELAY_SEC": "10"}


@pytest.mark.parametrize("name", STALE_NAMES)
def test_properties_of_an_earlier_delivery_are_removed(topics: TopicTable, name: str) -> None:
    batch = PutBatch(4, 1)
    add(topics, batch, {name: DELIVERED[name], "TIMER_DELIVER_MS": "1700000100001"})
    hook_of(topics)(batch, NOW)
    assert held(topics, batch.rows[0])[0] == TIMER_TOPIC
    assert batch.properties(0) == {"TIMER_DELIVER_MS": "1700000100001"}


@pytest.mark.parametrize(
    ("rule", "changes", "status"),
    [
        ("complete", {}, 0),
        ("due already", {"TIMER_OUT_MS": "5"}, 0),
        ("with a time of its own", {"TIMER_DELAY_SEC": "10"}, 0),
        ("no TIMER_OUT_MS", {"TIMER_OUT_MS": ""}, 13),
        ("TIMER_OUT_MS no number", {"TIMER_OUT_MS": "x"}, 13),
        ("too far", {"TIMER_OUT_MS": str(NOW + MAX_MS)}, 13),
        ("held longer than until its slot", {"DUEMQ_DUE_MS": "999999999999999999"}, 13),
        ("no topic", {"REAL_TOPIC": ""}, 13),
        ("an unknown topic", {"REAL_TOPIC": "Nowhere"}, 13),
        ("the timer topic", {"REAL_TOPIC": TIMER_TOPIC}, 13),
        ("half messages", {"REAL_TOPIC": HALF_TOPIC}, 13),
        ("a closed topic", {"REAL_TOPIC": "Closed"}, 13),
        ("no queue", {"REAL_QID": ""}, 13),
        ("a queue that cannot be", {"REAL_QID": "65536"}, 13),
        ("not even a time", dict.fromkeys(DIRECT, ""), 13),
    ],
)
def test_only_complete_timers_may_be_sent_to_the_timer_topic(
    topics: TopicTable, rule: str, changes: dict[str, str], status: int
) -> None:
    """T1: one invalid message there stops all timers of an Apache broker."""
    topics.set_routing("Closed", write_queues=1, read_queues=1, perm=6, closed=True)
    batch = PutBatch(4, 1)
    properties = {name: value for name, value in (DIRECT | changes).items() if value}
    add(topics, batch, properties, TIMER_TOPIC, queue_id=0)
    hook_of(topics)(batch, NOW)
    assert batch.rows[0]["status"] == status, rule
    assert (TIMER_TOPIC in batch.remarks.get(0, "")) == bool(status)
    assert batch.rows[0]["real_topic_index"] == -1
    assert batch.properties(0) == properties


@pytest.mark.parametrize(("over", "status"), [(0, 0), (1, 13)])
def test_a_timer_whose_delivery_would_not_fit_is_refused_at_once(
    topics: TopicTable, over: int, status: int
) -> None:
    """T4: Apache accepts it and drops it when it is due."""
    batch = PutBatch(4, 1)
    text, added = "TIMER_DELAY_SEC\x0110\x02", "TIMER_OUT_MS\x011700000010000\x02"
    added += "REAL_TOPIC\x01T\x02REAL_QID\x013\x02"
    filler = 32_767 - GROWTH_BYTES - len(text) - len(added) + over
    text += "K\x01" + "v" * (filler - 3) + "\x02"
    add(topics, batch, text.encode())
    hook_of(topics)(batch, NOW)
    assert batch.rows[0]["status"] == status
    assert ("leave no room" in batch.remarks.get(0, "")) == bool(status)


# Flow control.


def crowd(topics: TopicTable, due_s: list[int]) -> PutBatch:
    batch = PutBatch(4, 1)
    for seconds in due_s:
        add(topics, batch, {"TIMER_DELAY_SEC": str(seconds)})
    return batch


def test_a_slot_takes_exactly_its_limit(topics: TopicTable) -> None:
    batch = crowd(topics, [10, 20, 10, 10, 20, 10])
    hook = hook_of(topics, counts={1_700_000_010_000: 8}, slot_timers_max=10)
    hook(batch, NOW)
    assert batch.filled["status"].tolist() == [0, 0, 0, 1, 0, 1]
    for part in (
        "flow control",
        "10 timers are pending",
        "1700000010000",
        "timerCongestNumEachSlot is 10",
    ):
        assert part in batch.remarks[3]


def test_a_refusal_reports_the_lateness(topics: TopicTable) -> None:
    batch = crowd(topics, [10])
    hook_of(topics, counts={1_700_000_010_000: 2_000_000}, slot_timers_max=1_000_000)(batch, NOW)
    assert "2000000 timers are pending" in batch.remarks[0]
    assert "4000 ms late" in batch.remarks[0]


def test_a_topic_takes_exactly_its_quota(topics: TopicTable) -> None:
    batch = crowd(topics, [10, 20, 30])
    add(topics, batch, {"TIMER_DELAY_SEC": "40"}, "U")
    hook_of(topics, pending={"T": 98, "U": 100}, topic_quota=100)(batch, NOW)
    assert batch.filled["status"].tolist() == [0, 0, 1, 1]
    assert "100 timers of topic T are pending, timerTopicQuota is 100" in batch.remarks[2]


def test_a_quota_may_be_one_timer(topics: TopicTable) -> None:
    batch = crowd(topics, [10, 20])
    hook_of(topics, pending={"T": 0}, topic_quota=1)(batch, NOW)
    assert batch.filled["status"].tolist() == [0, 1]


def test_cancels_are_not_limited(topics: TopicTable) -> None:
    batch = PutBatch(4, 1)
    add(topics, batch, {"TIMER_DELAY_SEC": "10", "TIMER_DEL_UNIQKEY": "T+U"})
    hook_of(topics, slot_timers_max=0)(batch, NOW)
    assert batch.rows[0]["status"] == 0


def test_flow_control_can_be_switched_off_while_running(topics: TopicTable) -> None:
    config = TimerConfig(slot_timers_max=0)
    hook = hook_of(topics, config)
    refused, taken = crowd(topics, [10]), crowd(topics, [10])
    hook(refused, NOW)
    hook.reconfigure(replace(config, flow_control=False, precision_ms=100))
    hook(taken, NOW)
    assert (refused.rows[0]["status"], taken.rows[0]["status"]) == (1, 0)
    assert taken.rows[0]["out_ms"] == 1_700_000_010_000  # in slots of the store's precision


def test_a_stripped_timer_counts_for_the_limit(topics: TopicTable) -> None:
    batch = PutBatch(4, 1)
    for _ in range(3):
        add(topics, batch, DELIVERED | {"TIMER_DELAY_SEC": "10"})
    hook_of(topics, slot_timers_max=2)(batch, NOW)
    assert batch.filled["status"].tolist() == [0, 0, 1]


# Spread.


def test_spread_is_constant_for_an_id_never_early_and_even(topics: TopicTable) -> None:
    found = []
    for _ in range(2):
        batch = PutBatch(4, 1)
        for n in range(400):
            properties = {"TIMER_DELIVER_MS": "1700000100000", "UNIQ_KEY": f"7F000001{n:024X}"}
            add(topics, batch, properties)
        hook_of(topics, spread_ms=999)(batch, NOW)
        found.append(batch.filled["due_ms"].tolist())
        assert all(
            out == (due - 1) // 1_000 * 1_000
            for out, due in zip(batch.filled["out_ms"].tolist(), found[-1], strict=True)
        )
    assert found[0] == found[1]
    late = [due - 1_700_000_100_000 for due in found[0]]
    assert min(late) >= 0
    assert max(late) <= 999
    assert all(20 <= n <= 65 for n in Counter(ms // 100 for ms in late).values())


def test_due_times_can_be_spread_by_one_millisecond(topics: TopicTable) -> None:
    batch = PutBatch(4, 1)
    for n in range(20):
        add(topics, batch, {"TIMER_DELIVER_MS": "1700000100000", "UNIQ_KEY": f"{n:032X}"})
    hook_of(topics, spread_ms=1)(batch, NOW)
    assert set(batch.filled["due_ms"].tolist()) == {1_700_000_100_000, 1_700_000_100_001}


def test_a_cancel_is_not_spread(topics: TopicTable) -> None:
    batch = PutBatch(4, 1)
    properties = {"TIMER_DELAY_SEC": "10", "TIMER_DEL_UNIQKEY": "T+U", "UNIQ_KEY": "U"}
    add(topics, batch, properties)
    hook_of(topics, spread_ms=60_000)(batch, NOW)
    assert (batch.rows[0]["due_ms"], batch.rows[0]["out_ms"]) == (-1, 1_700_000_010_000)


# Against the twin.

values = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "10",
        "259200",
        "259201",
        "259200000",
        "1700000000123",
        "1700000000124",
        "1700000005000",
        "1700259200123",
        "1700259200124",
        "x",
        "9" * 18,
        "9" * 19,
        "+7",
    ]
)
pairs = st.one_of(
    st.tuples(st.sampled_from(["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]), values),
    st.tuples(st.sampled_from(["TIMER_DEL_UNIQKEY", "KEYS", "UNIQ_KEY"]), st.just("T+U")),
    st.sampled_from(sorted(DELIVERED.items())),
)
messages = st.fixed_dictionaries(
    {
        "properties": st.lists(pairs, max_size=4).map(dict),
        "topic": st.sampled_from(["T", "T", "U", "%RETRY%g", "%DLQ%g", HALF_TOPIC, TIMER_TOPIC]),
        "sys_flag": st.sampled_from([0, 0, 0, 1, 8, 4, 12]),
        "status": st.sampled_from([0, 0, 0, 16]),
    }
)


@given(st.lists(messages, max_size=12), st.sampled_from([100, 1_000]))
def test_rows_equal_the_naive_implementation(
    made: list[dict[str, str | int | dict[str, str]]], precision_ms: int
) -> None:
    topics, batch = TopicTable(), PutBatch(4, 1)
    for message in made:
        at = add(topics, batch, **{k: v for k, v in message.items() if k != "status"})
        batch.rows[at]["status"] = message["status"]
    hook_of(topics, precision_ms=precision_ms)(batch, NOW)
    for at, message in enumerate(made):
        expected = naive.redirect(message, topics, NOW, MAX_MS, precision_ms)
        row = batch.rows[at]
        assert (int(row["status"]), int(row["out_ms"])) == expected, message
        if row["out_ms"] >= 0:
            assert topics.name(int(row["topic_index"])) == TIMER_TOPIC
            assert topics.name(int(row["real_topic_index"])) == message["topic"]
            kept = {k: v for k, v in message["properties"].items() if k not in DELIVERED}
            assert batch.properties(at) == kept
        else:
            assert batch.properties(at) == message["properties"]


def test_a_batch_larger_than_any_before(topics: TopicTable) -> None:
    batch = PutBatch(8, 1)
    for _ in range(3_000):
        add(topics, batch, {"TIMER_DELAY_SEC": "10"})
    hook_of(topics)(batch, NOW)
    assert (batch.filled["out_ms"] == 1_700_000_010_000).all()


@pytest.mark.finding("3S7")
def test_one_refusal_of_a_client_batch_suffices(topics: TopicTable) -> None:
    batch = PutBatch(8)
    for value in ("x", "y", "z", "u", "5000"):
        add(topics, batch, {"TIMER_DELAY_MS": value})
    batch.together = [(0, 3)]
    hook_of(topics)(batch, NOW)
    assert list(batch.remarks) == [0, 3]
    batch.refuse_together()
    assert batch.filled["status"].tolist() == [13, 13, 13, 13, 0]
