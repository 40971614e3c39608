"""Conversion of due records into messages: the kernel and the Python path give the same result."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.deliverer import build
from delayed_delivery.kernels.outcome import SKIPPED
from delayed_delivery.outcome import NO_TOPIC
from delayed_delivery.redirected import without
from duemq_common.text import java_hash
from duemq_common.topics import HALF_TOPIC, TIMER_TOPIC
from message_store import layout as store_layout
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from tests.support.due_timers import (
    PRECISION_MS,
    WRITE_MS,
    append_timers,
    open_timer_store,
    staged,
    timer_topics,
)
from tests.support.stores import add_message, put_one
from timer_store import layout
from timer_store.dequeue.deliverer import Gatherer, Load
from timer_store.dequeue.original_properties import DROPPED
from timer_store.kernels import gather as kernels
from timer_store.kernels.enqueue import Scratch
from timer_store.layout import FROM_LEVEL, FROM_ROUTE, FROM_TIMER

NOW_MS = 1_700_000_000_000
TARGETS = ["T", "%RETRY%group", "é-topic", "gone", "U", HALF_TOPIC, TIMER_TOPIC]
QUEUE_IDS = ["0", "3", "+2", "-1", "x", "65535", "65536", "99999999999"]
TIMES = ["1000", "999000", "1000000", "1000500", "x", "-5", "+1000", "9" * 18, "9" * 19]
HOSTS = [(b"\x7f\0\0\1", 10911), (bytes(range(16)), 65_535)]
known = st.fixed_dictionaries(
    {"REAL_TOPIC": st.sampled_from(["T", "T", *TARGETS]), "REAL_QID": st.sampled_from(QUEUE_IDS)},
    optional={
        "TAGS": st.sampled_from(["TagA", "ü"]),
        "KEYS": st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=9),
        "WAIT": st.just("true"),
        "TIMER_OUT_MS": st.sampled_from(["1000", "999000", *TIMES]),
        "TIMER_DELIVER_MS": st.sampled_from(TIMES),
        "TIMER_DELAY_MS": st.sampled_from(["5", "x", "1000"]),
        "TIMER_DELAY_SEC": st.sampled_from(["0", "1"]),
        "TIMER_ROLL_TIMES": st.just("2"),
        "TIMER_ENQUEUE_MS": st.sampled_from(["5", "9223372036854775807"]),
        "TIMER_DEQUEUE_MS": st.just("7"),
        "TIMER_DEL_UNIQKEY": st.just("T+k"),
        "TIMER_DEL": st.just("x"),
        "TIMER_ENQUEUE_MSX": st.just("x"),
        "DUEMQ_DUE_MS": st.sampled_from(TIMES),
        "__CRC32#": st.sampled_from(["8784913581", "1"]),
        "__CRC32": st.just("1"),
    },
)
usual = st.builds(
    lambda extra: {"REAL_TOPIC": "T", "REAL_QID": "1", "TIMER_OUT_MS": "999000"} | extra,
    st.fixed_dictionaries({}, optional={"TAGS": st.just("A"), "TIMER_ENQUEUE_MS": st.just("5")}),
)
message = st.tuples(
    st.binary(max_size=40),
    st.one_of(usual, known),
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
    st.booleans(),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    root = tmp_path_factory.mktemp("store")
    with open_timer_store(root, commitlog_file_bytes=1 << 22) as store:
        timer_topics(store, *TARGETS[:3])
        for name in ("U", "other"):
            store.topics.add(name)
        yield store


def put_timers(store: MessageStore, messages: list[tuple[Any, ...]]) -> npt.NDArray[np.void]:
    """Append messages, some not valid timers; return STAGED rows due at 1,000,000 ms."""
    batch = PutBatch(8, 1)
    for body, pairs, born, stored, trailing in messages:
        text = encode_properties(pairs)
        batch.add(
            topic_index=store.topics.add(TIMER_TOPIC),
            queue_id=0,
            body=body,
            properties=text if trailing else text.removesuffix(b"\x02"),
            born_ms=len(body),
            born_host=born,
            store_host=stored,
            flag=7,
            sys_flag=1,
            reconsume_times=3,
        )
    store.put(batch)
    return staged(batch.filled, 1_000_000)


def gathered(
    store: MessageStore, rows: npt.NDArray[np.void], batch: PutBatch | None = None
) -> tuple[Load, npt.NDArray[np.bool]]:
    """Return the results of kernel and Python path, and which rows the kernel converted."""
    gatherer, batch = Gatherer(store, PRECISION_MS), batch or PutBatch(1, 1)
    load = gatherer.plan(rows, batch, NOW_MS)
    load.read()
    made = load.is_malformed == 0
    gatherer.finish(load)
    return load, made


def compare(batch: PutBatch, at: int, plain: PutBatch) -> None:
    """Check that both rows are equal except for positions in the staging buffer."""
    for name in sorted(set(store_layout.PUT.names) - {"body_pos", "prop_pos", "uniq_pos"}):
        assert batch.rows[at][name] == plain.rows[0][name], name
    assert batch.body(at) == plain.body(0)
    assert batch.property_text(at) == plain.property_text(0)


@given(st.lists(message, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_kernel_agrees_with_the_python_path(
    store: MessageStore, messages: list[tuple[Any, ...]], shuffle: random.Random
) -> None:
    rows = put_timers(store, messages)
    order = list(range(rows.size))
    shuffle.shuffle(order)
    rows = rows[order]
    load, made = gathered(store, rows)
    gatherer, plain = Gatherer(store, PRECISION_MS), PutBatch(1, 1)
    for at in range(rows.size):
        plain.clear()
        item = build(gatherer, rows[at], gatherer.delivery(NOW_MS), plain)
        assert (item is None) == bool(made[at])
        assert (item is None) == (at not in load.quarantine_items)
        if item is None:
            compare(load.batch, at, plain)
            assert load.batch.rows[at]["prepared_offset"] == -(rows[at]["phys_offset"] + 1)
            assert load.batch.rows[at]["enqueue_ms"] == WRITE_MS
            assert load.batch.rows[at]["dequeue_ms"] == NOW_MS
        else:
            assert load.quarantine_items[at].reason == item.reason
            assert load.batch.properties(at)["DUEMQ_REASON"] == item.reason
            assert load.batch.body(at) == item.data


def test_properties_of_an_earlier_delivery_are_dropped(store: MessageStore) -> None:
    pairs = {
        "TIMER_ENQUEUE_MS": "1",
        "REAL_TOPIC": "T",
        "TIMER_ROLL_TIMES": "3",
        "REAL_QID": "1",
        "TIMER_DEQUEUE_MS": "2",
        "TIMER_OUT_MS": "999000",
        "UNIQ_KEY": "k",
        "__CRC32#": "8784913581",
    }
    rows = put_timers(store, [(b"body", pairs, HOSTS[0], HOSTS[1], True)])
    load, made = gathered(store, rows)
    assert made.all()
    kept = {k: v for k, v in pairs.items() if k not in ("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")}
    del kept["__CRC32#"]
    assert load.batch.property_text(0) == encode_properties(kept)


@pytest.mark.parametrize(
    ("due_ms", "properties", "reason"),
    [
        (1_000_000, {"TIMER_DELIVER_MS": "1000000"}, None),
        (999_999, {"TIMER_DELIVER_MS": "1000000"}, "wrong_record"),
        (1_000_000, {"DUEMQ_DUE_MS": "1000001"}, "wrong_record"),
        (1_000_000, {}, None),
        (999_001, {}, "wrong_record"),
        (10**15, {"TIMER_DELAY_MS": "5"}, "wrong_record"),  # later than promised
        (1_000_000, {"TIMER_DELAY_MS": "5"}, "wrong_record"),  # it was stored in 2023
        (1_000_000, {"TIMER_OUT_MS": ""}, "no_time"),
        (1_000_000, {"TIMER_DEL_UNIQKEY": "T+k"}, "wrong_record"),
        (1_000_000, {"REAL_TOPIC": "other"}, "topic_missing"),
        (1_000_000, {"REAL_TOPIC": TIMER_TOPIC}, "no_target"),
        (1_000_000, {"REAL_TOPIC": HALF_TOPIC}, "half_message"),
        (1_000_000, {"REAL_QID": "-1"}, "no_target"),
    ],
)
def test_another_record_at_the_offset_is_not_delivered(
    store: MessageStore, due_ms: int, properties: dict[str, str], reason: str | None
) -> None:
    """T8: it would be early, or another message."""
    base = {"TIMER_DELIVER_MS": "", "TIMER_OUT_MS": "999000"}
    row = append_timers(store, b"body", due_ms=1_000_000, **(base | properties))
    row["due_ms"] = due_ms
    load, made = gathered(store, row)
    assert made.all() == (reason is None)
    assert [item.reason for item in load.quarantine_items.values()] == ([reason] if reason else [])


def test_a_fired_timer_may_be_early(store: MessageStore) -> None:
    row = append_timers(store, b"body", due_ms=NOW_MS + 10**6)
    row["due_ms"] = NOW_MS
    assert not gathered(store, row)[1].any()
    row["state"] = layout.STAGED_FIRED
    load, made = gathered(store, row)
    assert made.all()
    assert not load.quarantine_items


@pytest.mark.parametrize(
    ("shift", "growth"), [(1, 0), (0, 1), (0, -1), (10**9, 0), (0, 10**6), (0, -(10**6))]
)
def test_a_unit_with_a_wrong_offset_or_size(store: MessageStore, shift: int, growth: int) -> None:
    row = append_timers(store, b"body", due_ms=1_000_000)
    row["phys_offset"] += shift
    row["record_size"] += growth
    load, made = gathered(store, row)
    assert not made.any()
    assert load.quarantine_items[0].reason == "unreadable"


@pytest.mark.parametrize("topic", ["T", TIMER_TOPIC])
def test_a_record_of_another_queue_is_not_delivered(store: MessageStore, topic: str) -> None:
    pairs = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "999000"}
    put = put_one(store, topic, 1, properties=pairs)
    load, _ = gathered(store, staged(np.array([put]), 1_000_000))
    assert load.quarantine_items[0].reason == "wrong_record"
    assert f"{topic} queue 1" in load.quarantine_items[0].detail


def test_a_flipped_byte_is_never_delivered_as_another_message(store: MessageStore) -> None:
    """For every damaged byte the kernel stays inside the record and rejects a wrong body."""
    row = append_timers(store, b"hello", due_ms=1_000_000, TAGS="A")
    start, size = int(row["phys_offset"][0]), int(row["record_size"][0])
    context = kernels.Context(store.topics.find(TIMER_TOPIC), -1, -1, True, NOW_MS, PRECISION_MS)
    arrays, order = store.topics.arrays, np.zeros(1, np.int32)
    for position in range(size):
        data = store.log.view(start, size).copy()
        data[position] ^= 0x41
        rows, staging = np.zeros(1, store_layout.PUT), np.full(size, 0xEE, np.uint8)
        is_malformed, end = np.zeros(1, np.uint8), np.zeros(1, np.int64)
        scratch = Scratch(np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT))
        output = kernels.Output(rows, staging, end, is_malformed)
        kernels.gather(data, (start, size), row, order, arrays, context, scratch, output)
        if not is_malformed[0]:
            out = rows[0]
            body = staging[out["body_pos"] :][: out["body_len"]].tobytes()
            assert (position, body) == (position, b"hello")
            assert out["prop_pos"] + out["prop_len"] == end[0] <= size, position


@given(
    st.lists(
        st.sampled_from(
            [
                b"",
                b"a",
                b"TIMER_ENQUEUE_MS\x015",
                b"TIMER_DEQUEUE_MS\x01",
                b"__CRC32#\x011",
                b"TIMER_ENQUEUE_MS",
                b"TIMER_ENQUEUE_MT\x011",
                b"__CRC32#",
                b"TIMER_OUT_MS\x017",
                b"DUEMQ_DUE_MS\x018",
                b"TIMER_ROLL_TIMES\x012",
                b"DELAy\x013",
                b"TIMER_OUT_MS",
            ]
        ),
        max_size=6,
        unique=True,
    ),
    st.sampled_from([FROM_TIMER, FROM_LEVEL, FROM_ROUTE]),
)
def test_copy_kept(entries: list[bytes], kind: int) -> None:
    text = b"\x02".join(entries)
    data, out = np.frombuffer(text + b"TIMER", np.uint8), np.zeros(300, np.uint8)
    name_pos = text.rfind(b"DELAy\x01") + 4 if b"DELAy\x01" in text and kind else -1
    end = kernels.copy_kept(data, 0, len(text), kind, name_pos, out, 3)
    expected = without(text, *DROPPED[kind])
    assert out[3:end].tobytes() == (expected.replace(b"DELAy", b"DELAY") if kind else expected)


def test_timers_of_several_log_files_in_any_order(tmp_path: Path) -> None:
    with open_timer_store(tmp_path, commitlog_file_bytes=65_536) as store:
        timer_topics(store, "T", "U")
        rows = append_timers(store, *[b"%03d" % n + bytes(2_000) for n in range(100)])
        assert len(store.log.files) > 3
        order = np.random.default_rng(5).permutation(rows.size)
        load, made = gathered(store, rows[order])
        assert made.all()
        assert [load.batch.body(n)[:3] for n in range(100)] == [b"%03d" % n for n in order]
        store.put(load.batch)
        first = store.read_record(int(load.batch.rows[0]["phys_offset"]))
        assert first.body[:3] == b"%03d" % order[0]
        assert first.properties["TIMER_ENQUEUE_MS"] == str(WRITE_MS)
        assert first.properties["TIMER_DEQUEUE_MS"] == str(NOW_MS)


def test_a_removed_record_is_lost_and_gives_no_row(tmp_path: Path) -> None:
    with open_timer_store(tmp_path, commitlog_file_bytes=65_536) as store:
        timer_topics(store, "T")
        rows = append_timers(store, *[bytes(2_000)] * 60)
        store.log.detach_first().erase()
        load, _ = gathered(store, rows)
        gone = int((rows["phys_offset"] < store.log.min_offset).sum())
        assert load.lost == list(range(gone))
        assert (load.batch.filled["status"][:gone] == SKIPPED).all()
        assert not load.batch.filled["status"][gone:].any()


def test_the_topic_of_an_unreadable_timer_is_found_by_its_hash(store: MessageStore) -> None:
    gatherer, row = Gatherer(store, PRECISION_MS), np.zeros(1, layout.STAGED)[0]

    def topic_of(topic_hash: int) -> int:
        row["topic_hash"] = topic_hash
        return gatherer.topic_of(row)

    assert topic_of(java_hash("T")) == store.topics.find("T")
    assert topic_of(12_345) == NO_TOPIC
    new = store.topics.add("made later")
    assert topic_of(java_hash("made later")) == new


def test_damaged_records_report_the_damage(store: MessageStore) -> None:
    batch = PutBatch(4, 1)
    for pairs in ({"REAL_TOPIC": "T", "REAL_QID": "0"}, {"TIMER_OUT_MS": "5"}):
        add_message(store, batch, TIMER_TOPIC, 0, properties=pairs)
    store.put(batch)
    rows = np.zeros(3, layout.TIMED)
    for row, put in zip(rows, batch.filled, strict=False):
        row["phys_offset"], row["record_size"] = put["phys_offset"], put["record_size"]
    rows[2]["phys_offset"] = 10**12
    gatherer = Gatherer(store, PRECISION_MS)
    items = [build(gatherer, row, gatherer.fault, batch) for row in rows]
    assert [item.reason for item in items] == ["no_time", "no_target", "unreadable"]
    assert all(item.due_ms == -1 and item.level == 0 for item in items)
