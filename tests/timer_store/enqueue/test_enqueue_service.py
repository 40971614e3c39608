"""Enqueue stage: an appended batch and the same batch read from the queue give the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.record import decode_record
from message_store.store import MessageStore
from tests.support.extended import examples
from tests.support.stores import add_message, open_store
from tests.timer_store.kernels import naive
from timer_store import layout
from timer_store.config import TimerConfig
from timer_store.enqueue.enqueue_service import TimerFetcher

T0 = 1_700_000_000_500
COLUMNS = ("due_ms", "slot_ms", "origin", "topic_hash", "topic_index", "kind")

numbers = st.sampled_from(["1700000010000", "1700000000999", "10", "0", "-7", "+12", "x", "9" * 19])
names = st.sampled_from(
    ["TIMER_OUT_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "DUEMQ_DUE_MS"]
)
pairs = st.one_of(
    st.tuples(names, numbers),
    st.tuples(names, st.just("")),
    st.tuples(st.just("REAL_QID"), st.sampled_from(["0", "3", "65535", "65536", "-1", "q"])),
    st.tuples(st.just("REAL_TOPIC"), st.sampled_from(["T", "Other", "Unknown", "Thé", "T\x01x"])),
    st.tuples(st.just("TIMER_ROLL_TIMES"), st.sampled_from(["1", "2"])),
    st.tuples(st.just("TIMER_DEL_UNIQKEY"), st.sampled_from(["T+U", "U"])),
    st.tuples(st.sampled_from(["KEYS", "TIMER_", "TIMER_OUT_M", "REAL", "D", "é"]), st.just("k")),
)
texts = st.tuples(
    st.just([("TIMER_OUT_MS", "1700000010000"), ("REAL_TOPIC", "T"), ("REAL_QID", "1")])
    | st.just([]),
    st.lists(pairs, max_size=6),
    st.booleans(),
).map(lambda made: text_of(made[0] + made[1], ends=made[2]))
columns = st.fixed_dictionaries(
    {
        "out_ms": st.sampled_from([-1, -1, 1_700_000_009_000]),
        "due_ms": st.sampled_from([-1, -1, 1_700_000_009_777]),
        "real": st.sampled_from(["", "", "T", "Other"]),
        "topic": st.sampled_from([TIMER_TOPIC] * 4 + ["T"]),
        "prepared_offset": st.sampled_from([0, 0, 77, -1, -5_001]),
        "sys_flag": st.sampled_from([0, 0, 0, 8, 4]),
    }
)


def text_of(entries: list[tuple[str, str]], *, ends: bool = True) -> bytes:
    joined = "".join(f"{name}\x01{value}\x02" for name, value in entries)
    return (joined if ends else joined[:-1]).encode()


def add(store: MessageStore, batch: PutBatch, text: bytes, made: dict[str, int | str]) -> None:
    at = add_message(
        store,
        batch,
        made["topic"],
        sys_flag=made["sys_flag"],
        prepared_offset=made["prepared_offset"],
    )
    batch.set_properties(at, text)
    row = batch.rows[at]
    row["out_ms"], row["due_ms"] = made["out_ms"], made["due_ms"]
    if made["real"]:
        row["real_topic_index"], row["real_queue_id"] = store.topics.add(made["real"]), 2


def rows_of(timed: npt.NDArray[np.void]) -> list[tuple[int, ...]]:
    names = ("phys_offset", "queue_offset", "record_size", *COLUMNS)
    return [tuple(int(row[name]) for name in names) for row in timed]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(100))
@given(st.lists(st.tuples(texts, columns), min_size=1, max_size=8), st.sampled_from([100, 1_000]))
def test_both_sources_agree_with_the_naive_implementation(
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[tuple[bytes, dict[str, int | str]]],
    precision_ms: int,
) -> None:
    with open_store(tmp_path_factory.mktemp("store"), FakeClock(T0)) as store:
        for name in ("Other", "T", "Thé"):
            store.topics.add(name)
        fetcher, batch = TimerFetcher(store, TimerConfig(precision_ms=precision_ms)), PutBatch()
        for text, made in messages:
            add(store, batch, text, made)
        store.put(batch)
        live = fetcher.fetch_batch(batch).copy()
        timed, following = fetcher.fetch_queue(0, 100)
        again = rows_of(timed)
        broken = live["kind"] == layout.TIMED_BROKEN
        assert (live["topic_index"][broken] <= timed["topic_index"][broken]).all()
        live["topic_index"][broken] = timed["topic_index"][broken]
        assert rows_of(live) == again
        assert following == len(again) == fetcher.bounds()[1]
        data = bytes(store.log.files[0].data)
        for phys_offset, queue_offset, size, *found in again:
            assert tuple(found) == naive.timed(
                data, phys_offset, size, store.topics, precision_ms, queue_offset
            ), decode_record(memoryview(data)[phys_offset:], 0).properties


def put_timer(
    store: MessageStore, batch: PutBatch, body: bytes = b"b", out_ms: int = 1_700_000_010_000
) -> None:
    at = add_message(store, batch, TIMER_TOPIC, body=body)
    row = batch.rows[at]
    row["out_ms"], row["real_topic_index"], row["real_queue_id"] = out_ms, store.topics.add("T"), 0


def test_the_queue_is_read_across_log_files_and_from_the_middle(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fetcher, batch, live = TimerFetcher(store, TimerConfig()), PutBatch(), []
        for n in range(200):
            batch.clear()
            add_message(store, batch, "T")
            put_timer(store, batch, b"x" * (10 + n * 7), 1_700_000_000_000 + n * 1_000)
            store.put(batch)
            live += rows_of(fetcher.fetch_batch(batch))
        assert len(store.log.files) > 2
        found, at = [], 0
        while at < 200:
            timed, at = fetcher.fetch_queue(at, 33)
            found += rows_of(timed)
        assert found == live
        assert fetcher.fetch_queue(200, 10)[1] == 200


def test_refused_rows_are_no_timers(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fetcher, batch = TimerFetcher(store, TimerConfig()), PutBatch()
        put_timer(store, batch)
        put_timer(store, batch)
        batch.refuse(0, 13, "no")
        store.put(batch)
        assert [row["queue_offset"] for row in fetcher.fetch_batch(batch)] == [0]


@pytest.mark.parametrize(
    ("rule", "units"),
    [
        ("beyond the log's end", [(1 << 40, 100)]),
        ("a size that is not the record's", [(0, 91)]),
        ("a size that reaches past the end", [(0, 1 << 20)]),
        ("the middle of a record", [(7, 100)]),
        ("another topic's record", [(None, None)]),
        ("before the log begins", [(-1, 100)]),
        ("several, between good ones", [(1 << 40, 100), (3, 91)]),
    ],
)
def test_queue_units_without_a_record_do_not_stop_the_stage(
    tmp_path: Path, rule: str, units: list[tuple[int | None, int | None]]
) -> None:
    with open_store(tmp_path) as store:
        fetcher, batch = TimerFetcher(store, TimerConfig()), PutBatch()
        add_message(store, batch, "T")
        for _ in range(len(units) + 2):
            put_timer(store, batch)
        store.put(batch)
        good = store.units(TIMER_TOPIC, 0, 0, 10)
        other = store.units("T", 0, 0, 1)[0]
        bad = np.zeros(len(units), good.dtype)
        for row, (phys_offset, size) in zip(bad, units, strict=True):
            row["phys_offset"] = other["phys_offset"] if phys_offset is None else phys_offset
            row["size"] = other["size"] if size is None else size
        all_units = np.concatenate([good[:1], bad, good[-1:]])
        timed = np.zeros(all_units.size, layout.TIMED)
        at = 0
        while at < all_units.size:
            at += fetcher.read(all_units[at:], at, timed[at:])
        expected = [layout.TIMED_PLAIN, *[layout.TIMED_BROKEN] * bad.size, layout.TIMED_PLAIN]
        assert timed["kind"].tolist() == expected, rule
        assert timed["phys_offset"].tolist() == all_units["phys_offset"].tolist()
        assert timed["queue_offset"].tolist() == list(range(all_units.size))


def test_a_flipped_byte_anywhere_never_raises(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fetcher, batch = TimerFetcher(store, TimerConfig()), PutBatch()
        put_timer(store, batch)
        put_timer(store, batch)
        store.put(batch)
        file, size = store.log.files[0], int(batch.rows[0]["record_size"])
        expected = rows_of(fetcher.fetch_queue(0, 2)[0])
        for at in range(size):
            kept = bytes([file.data[at]])
            for value in (0, 1, 2, 0xFF, kept[0] ^ 0x10):
                file.write(at, bytes([value]))
                found = rows_of(fetcher.fetch_queue(0, 2)[0])
                assert len(found) == 2
                assert found[1] == expected[1]
                twin = naive.timed(bytes(file.data), 0, size, store.topics, 1_000, 0)
                assert found[0][3:] == twin or value > 127
            file.write(at, kept)


def test_unknown_topics_with_equal_hashes(tmp_path: Path) -> None:
    names = ["Aa", "BB", "Aa", "Cc", "BB", "Aa"]  # Java hashes of "Aa" and "BB" are equal
    with open_store(tmp_path, FakeClock(T0)) as store:
        fetcher, batch = TimerFetcher(store, TimerConfig()), PutBatch()
        for name in names:
            text = f"TIMER_OUT_MS\x01{T0 + 5_000}\x02REAL_TOPIC\x01{name}\x02REAL_QID\x010\x02"
            at = add_message(store, batch, TIMER_TOPIC)
            batch.set_properties(at, text.encode())
        store.put(batch)
        timed, _ = fetcher.fetch_queue(0, 100)
        assert len(set(timed["topic_hash"][[0, 1]].tolist())) == 1
        assert [store.topics.name(index) for index in timed["topic_index"].tolist()] == names
