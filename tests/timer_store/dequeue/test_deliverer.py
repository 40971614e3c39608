"""Delivery of due timers: once, in order, without loss, and no failure blocks other timers."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from delayed_delivery.outcome import NOT_PUT, Outcome
from duemq_common.topics import HALF_TOPIC, QUARANTINE_TOPIC, TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.commit_log import LogFile
from message_store.log.unreadable import READS_MAX
from message_store.store import MessageStore
from tests.support.due_timers import (
    PRECISION_MS,
    WRITE_MS,
    append_timers,
    bodies,
    open_timer_store,
    records,
    timer_topics,
)
from tests.support.stores import add_message
from timer_store import layout
from timer_store.dequeue import deliverer as deliverer_module
from timer_store.dequeue.deliverer import TimerDeliverer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_timer_store(tmp_path, commitlog_file_bytes=1 << 20) as store:
        timer_topics(store, "T", "U")
        yield store


def deliver_batch(store: MessageStore, rows: npt.NDArray[np.void]) -> Outcome:
    return TimerDeliverer(store, PRECISION_MS).deliver_batch(rows, store.clock.now_ms())


def fail_writes(monkeypatch: pytest.MonkeyPatch, store: MessageStore, *, after: int = 0) -> None:
    """Let the disk refuse every append after the next `after` ones."""
    left = [after]
    write = type(store.log.files[0]).write

    def failing(self: LogFile, pos: int, data: memoryview | bytes) -> None:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "no space left")
        left[0] -= 1
        write(self, pos, data)

    monkeypatch.setattr(type(store.log.files[0]), "write", failing)


def recover(monkeypatch: pytest.MonkeyPatch, store: MessageStore) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(type(store), "disk_used_ratio", 0.1)
    store.check_disk()


def test_a_delivered_message_equals_apaches(store: MessageStore) -> None:
    body = b"hello" * 30
    rows = append_timers(store, body, queue_id=2, TAGS="A", KEYS="k", UNIQ_KEY="u", WAIT="true")
    store.clock.advance(7)  # type: ignore[attr-defined]
    outcome = deliver_batch(store, rows)
    assert (
        outcome.done,
        outcome.delivered,
        outcome.lost,
        outcome.refusal,
        outcome.quarantined,
    ) == (
        1,
        1,
        0,
        "",
        [],
    )
    assert outcome.store_ms.tolist() == [store.clock.now_ms()]
    assert outcome.topic_index.tolist() == [store.topics.find("T")]
    (got,) = records(store, "T", 2)
    before = store.read_record(int(rows[0]["phys_offset"]))
    assert got.body == body
    assert got.properties == before.properties | {
        "TIMER_ENQUEUE_MS": str(WRITE_MS),
        "TIMER_DEQUEUE_MS": str(store.clock.now_ms()),
    }
    assert got.prepared_offset == -(before.phys_offset + 1)
    for name in ("born_ms", "born_host", "store_host", "flag", "sys_flag", "reconsume_times"):
        assert getattr(got, name) == getattr(before, name)
    (unit,) = store.units("T", 2, 0, 9)
    assert unit["tags_code"] == ord("A")


def test_a_timer_that_was_due_at_the_put(store: MessageStore) -> None:
    rows = append_timers(store, b"body")
    rows["write_ms"] = 2**63 - 1
    deliver_batch(store, rows)
    assert records(store)[0].properties["TIMER_ENQUEUE_MS"] == "9223372036854775807"


def test_order_across_all_ways_of_delivery(store: MessageStore) -> None:
    good = append_timers(store, *[b"%02d" % n for n in range(20)])
    bad = append_timers(store, b"bad", topic="nowhere")
    plain = append_timers(store, b"plain", TIMER_ENQUEUE_MS="1", **{"__CRC32#": "1"})
    rows = np.concatenate([good[:7], bad, good[7:9], plain, good[9:]])
    rows[3]["phys_offset"] += 1
    outcome = deliver_batch(store, rows)
    assert (outcome.done, outcome.delivered, len(outcome.quarantined)) == (22, 20, 2)
    expected = [b"%02d" % n for n in range(20) if n != 3]
    assert bodies(store) == [*expected[:8], b"plain", *expected[8:]]
    assert np.flatnonzero(outcome.store_ms == NOT_PUT).tolist() == [3, 7]
    assert [item.reason for item in outcome.quarantined] == ["unreadable", "topic_missing"]
    assert (
        outcome.topic_index.tolist()
        == [store.topics.find("T")] * 7 + [-1] + [store.topics.find("T")] * 14
    )


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"REAL_TOPIC": "nowhere"}, "topic_missing"),
        ({"REAL_TOPIC": HALF_TOPIC}, "half_message"),
        ({"REAL_QID": "x"}, "no_target"),
        ({"REAL_TOPIC": TIMER_TOPIC}, "no_target"),
        ({"TIMER_DEL_UNIQKEY": "T+k"}, "wrong_record"),
    ],
)
def test_undeliverable_timers_are_quarantined_with_a_reason(
    store: MessageStore, properties: dict[str, str], reason: str
) -> None:
    """T4, T7, T8: they are not dropped and do not block others."""
    bad = append_timers(store, b"bad", KEYS="k", UNIQ_KEY="u", **properties)
    outcome = deliver_batch(store, np.concatenate([bad, append_timers(store, b"good")]))
    assert (outcome.done, outcome.delivered) == (2, 1)
    assert bodies(store) == [b"good"]
    (kept,) = records(store, QUARANTINE_TOPIC)
    assert kept.prepared_offset == -(int(bad[0]["phys_offset"]) + 1)
    found = kept.properties
    assert (found["DUEMQ_REASON"], found["KEYS"], found["UNIQ_KEY"]) == (reason, "k", "u")
    assert found["DUEMQ_DUE_MS"] == str(int(bad[0]["due_ms"]))
    assert found["DUEMQ_QUEUE_OFFSET"] == "0"
    assert "DUEMQ_LEVEL" not in found
    size = int(bad[0]["record_size"])
    assert kept.body == bytes(store.record_bytes(int(bad[0]["phys_offset"]), size))


def test_a_timer_for_a_deleted_topic(store: MessageStore) -> None:
    rows = append_timers(store, b"bad")
    store.topics.set_routing("T", write_queues=0, read_queues=0, perm=0)
    outcome = deliver_batch(store, rows)
    assert [item.reason for item in outcome.quarantined] == ["topic_missing"]
    assert outcome.topic_index.tolist() == [store.topics.find("T")]


def test_a_unit_that_points_at_a_delivered_message_does_not_deliver_it_again(
    store: MessageStore,
) -> None:
    """T8: its properties still contain REAL_TOPIC and REAL_QID."""
    rows = append_timers(store, b"once")
    deliver_batch(store, rows)
    (got,) = records(store)
    rows["phys_offset"], rows["record_size"] = got.phys_offset, got.total_size
    outcome = deliver_batch(store, rows)
    assert [item.reason for item in outcome.quarantined] == ["wrong_record"]
    assert bodies(store) == [b"once"]


def test_a_full_disk_loses_nothing(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: Apache gives up after three attempts within a second."""
    rows = append_timers(store, b"0", b"1", b"2")
    fail_writes(monkeypatch, store)
    deliverer = TimerDeliverer(store, PRECISION_MS)
    for _ in range(5):
        outcome = deliverer.deliver_batch(rows, store.clock.now_ms())
        assert (outcome.done, outcome.delivered) == (0, 0)
        assert "disk is full" in outcome.refusal
    recover(monkeypatch, store)
    outcome = deliverer.deliver_batch(rows, store.clock.now_ms())
    assert (outcome.done, outcome.refusal) == (3, "")
    assert bodies(store) == [b"0", b"1", b"2"]


def test_a_disk_that_fills_in_the_middle_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_timer_store(tmp_path, commitlog_file_bytes=65_536) as store:
        timer_topics(store, "T")
        rows = append_timers(store, *[b"%02d" % n + bytes(3_000) for n in range(30)])
        rows = np.concatenate([rows[:4], append_timers(store, b"bad", topic="nowhere"), rows[4:]])
        deliverer = TimerDeliverer(store, PRECISION_MS)
        fail_writes(monkeypatch, store, after=2)  # the rest of a file and its blank
        outcome = deliverer.deliver_batch(rows, store.clock.now_ms())
        done = outcome.done
        assert 0 < done < rows.size
        assert outcome.refusal
        assert outcome.delivered + len(outcome.quarantined) == done
        recover(monkeypatch, store)
        outcome = deliverer.deliver_batch(rows[done:], store.clock.now_ms())
        assert outcome.done == rows.size - done
        assert [body[:2] for body in bodies(store)] == [b"%02d" % n for n in range(30)]
        assert len(records(store, QUARANTINE_TOPIC)) == 1


def test_a_refused_undeliverable_timer_stays_pending(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.concatenate(
        [append_timers(store, b"bad", topic="nowhere"), append_timers(store, b"good")]
    )
    fail_writes(monkeypatch, store)
    outcome = deliver_batch(store, rows)
    assert (outcome.done, outcome.quarantined) == (0, [])
    recover(monkeypatch, store)
    assert deliver_batch(store, rows).done == 2
    assert len(records(store, QUARANTINE_TOPIC)) == 1


def test_records_that_retention_removed_are_counted_as_lost(tmp_path: Path) -> None:
    """T7: the loss is not silent."""
    with open_timer_store(tmp_path, commitlog_file_bytes=65_536) as store:
        timer_topics(store, "T")
        rows = append_timers(store, *[b"%02d" % n + bytes(3_000) for n in range(40)])
        store.log.detach_first().erase()
        gone = int((rows["phys_offset"] < store.log.min_offset).sum())
        outcome = deliver_batch(store, rows)
        assert (outcome.done, outcome.lost, outcome.delivered) == (40, gone, 40 - gone)
        assert (outcome.store_ms[:gone] == NOT_PUT).all()
        assert (outcome.topic_index == store.topics.find("T")).all()
        assert [body[:2] for body in bodies(store)] == [b"%02d" % n for n in range(gone, 40)]


LONG = "x" * 250


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_record_that_exceeds_its_log_file_is_quarantined(tmp_path: Path, where: int) -> None:
    """T4: it fills a log file, and the real topic's name is longer than the timer topic's."""
    with open_timer_store(tmp_path, commitlog_file_bytes=65_536, message_bytes_max=70_000) as store:
        timer_topics(store, "T", LONG)
        long = append_timers(store, bytes(65_050), topic=LONG)
        rows = append_timers(store, b"0", b"1")
        rows = np.concatenate([rows[:where], long, rows[where:]])
        outcome = deliver_batch(store, rows)
        assert (outcome.done, outcome.delivered) == (3, 2)
        assert bodies(store) == [b"0", b"1"]
        (kept,) = records(store, QUARANTINE_TOPIC)
        assert kept.properties["DUEMQ_REASON"] == "illegal"
        assert kept.body == b""  # the body stays in the log, at DUEMQ_PHYS_OFFSET


def test_long_records_that_fit_are_delivered_in_order(tmp_path: Path) -> None:
    with open_timer_store(tmp_path, commitlog_file_bytes=65_536, message_bytes_max=70_000) as store:
        timer_topics(store, "T")
        rows = append_timers(store, b"0", bytes(50_000), b"1", bytes(60_000), b"2")
        outcome = deliver_batch(store, rows)
        assert (outcome.done, outcome.delivered) == (5, 5)
        assert [len(body) for body in bodies(store)] == [1, 50_000, 1, 60_000, 1]


def test_properties_at_their_limit_are_delivered_without_additions(store: MessageStore) -> None:
    """T4: delivery omits what it would add, not the message."""
    rows = append_timers(store, b"body", KEYS="k" * 32_650)
    outcome = deliver_batch(store, rows)
    assert (outcome.delivered, outcome.quarantined) == (1, [])
    assert "TIMER_DEQUEUE_MS" not in records(store)[0].properties


def test_single_long_lost_and_damaged_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_timer_store(tmp_path, commitlog_file_bytes=65_536, message_bytes_max=70_000) as store:
        timer_topics(store, "T")
        rows = append_timers(store, bytes(60_000), bytes(60_001), bytes(60_002))
        rows[1]["phys_offset"] += 1
        store.log.detach_first().erase()
        fail_writes(monkeypatch, store)
        outcome = deliver_batch(store, rows)
        assert (outcome.done, outcome.lost) == (1, 1)
        assert outcome.refusal
        recover(monkeypatch, store)
        outcome = deliver_batch(store, rows[1:])
        assert [item.reason for item in outcome.quarantined] == ["unreadable"]
        assert [len(body) for body in bodies(store)] == [60_002]


@pytest.mark.parametrize("size", [-1, 0, 2**31 - 1])
def test_a_forged_size_needs_no_memory(store: MessageStore, size: int) -> None:
    rows = append_timers(store, b"0", b"1")
    rows[0]["record_size"] = size
    outcome = deliver_batch(store, rows)
    assert outcome.done == 2
    assert bodies(store) == [b"1"]
    assert [item.reason for item in outcome.quarantined] == ["unreadable"]


def test_an_empty_batch_reads_nothing(store: MessageStore) -> None:
    outcome = deliver_batch(store, np.zeros(0, layout.STAGED))
    assert (outcome.done, outcome.store_ms.size, outcome.refusal) == (0, 0, "")


# -- no timers at all -----------------------------------------------------------------------------


def test_damaged_records_of_the_timer_queue_are_quarantined(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = PutBatch(4, 1)
    for pairs in ({"REAL_TOPIC": "T", "REAL_QID": "0"}, {"TIMER_OUT_MS": "5"}):
        add_message(store, batch, TIMER_TOPIC, 0, properties=pairs)
    store.put(batch)
    rows = np.zeros(2, layout.TIMED)
    for row, put in zip(rows, batch.filled, strict=True):
        row["phys_offset"], row["record_size"] = put["phys_offset"], put["record_size"]
    deliverer = TimerDeliverer(store, PRECISION_MS)
    fail_writes(monkeypatch, store, after=1)
    assert deliverer.quarantine_broken(rows, store.clock.now_ms()) == 1
    recover(monkeypatch, store)
    assert deliverer.quarantine_broken(rows[1:], store.clock.now_ms()) == 1
    kept = records(store, QUARANTINE_TOPIC)
    assert [record.properties["DUEMQ_REASON"] for record in kept] == ["no_time", "no_target"]
    assert [record.prepared_offset for record in kept] == [
        -(int(row["phys_offset"]) + 1) for row in rows
    ]


# -- read in the thread ---------------------------------------------------------------------------


def wait_for_thread(deliverer: TimerDeliverer) -> None:
    """Wait until the thread has ended all reads."""
    assert deliverer.pool is not None
    deliverer.pool.submit(int).result(60)


def delete_topic(store: MessageStore) -> None:
    store.topics.set_routing("T", write_queues=0, read_queues=0, perm=0)


def replace_pages(store: MessageStore) -> None:
    store.unreadable.replaced = memoryview(np.array([store.unreadable.replaced[0] + 1]))


def change_nothing(store: MessageStore) -> None:
    """Leave the store as it is."""


@pytest.mark.parametrize(
    ("change", "first", "end", "reads", "delivered"),
    [
        (change_nothing, 3, 6, 0, [b"3", b"4", b"5"]),
        (change_nothing, 4, 6, 1, [b"4", b"5"]),  # one was cancelled meanwhile
        (change_nothing, 4, 7, 1, [b"4", b"5", b"6"]),  # and another one follows
        (delete_topic, 3, 6, 1, []),
        (replace_pages, 3, 6, READS_MAX, [b"3", b"4", b"5"]),
    ],
)
def test_records_read_in_the_thread_are_used_only_if_nothing_has_changed(
    store: MessageStore,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[MessageStore], None],
    first: int,
    end: int,
    reads: int,
    delivered: list[bytes],
) -> None:
    monkeypatch.setattr(deliverer_module, "AHEAD_ROWS", 1)
    rows, now_ms = append_timers(store, *[b"%d" % n for n in range(7)]), store.clock.now_ms()
    deliverer = TimerDeliverer(store, PRECISION_MS)
    read, threads = deliverer_module.Load.read, list[str]()

    def recorded(load: deliverer_module.Load) -> None:
        threads.append(threading.current_thread().name)
        read(load)

    monkeypatch.setattr(deliverer_module.Load, "read", recorded)
    with deliverer.threaded():
        assert deliverer.deliver_batch(rows[:3], now_ms, rows[3:6]).delivered == 3
        wait_for_thread(deliverer)
        change(store)
        outcome = deliverer.deliver_batch(rows[first:end], now_ms)
        assert (outcome.done, outcome.delivered) == (end - first, len(delivered))
    here = threading.current_thread().name
    assert sorted(threads) == sorted([here, "timer records_0", *[here] * reads])
    queued = store.units("T", 0, 0, 10)
    assert [store.read_record(int(unit["phys_offset"])).body for unit in queued] == [
        b"0",
        b"1",
        b"2",
        *delivered,
    ]


def test_the_thread_reads_into_another_batch_than_the_one_being_appended(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer_module, "AHEAD_ROWS", 1)
    rows, now_ms = append_timers(store, *[b"%d" % n for n in range(40)]), store.clock.now_ms()
    deliverer, put = TimerDeliverer(store, PRECISION_MS), store.put

    def put_after_the_thread(batch: PutBatch) -> None:
        wait_for_thread(deliverer)
        put(batch)

    monkeypatch.setattr(store, "put", put_after_the_thread)
    with deliverer.threaded():
        for start in range(0, 40, 4):
            deliverer.deliver_batch(rows[start : start + 4], now_ms, rows[start + 4 : start + 8])
    assert bodies(store) == [b"%d" % n for n in range(40)]


def test_a_thread_that_has_not_begun_is_not_waited_for(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer_module, "AHEAD_ROWS", 1)
    rows, now_ms = append_timers(store, b"0", b"1", b"2"), store.clock.now_ms()
    deliverer, busy = TimerDeliverer(store, PRECISION_MS), threading.Event()
    read, threads = deliverer_module.Load.read, set[str]()

    def recorded(load: deliverer_module.Load) -> None:
        threads.add(threading.current_thread().name)
        read(load)

    monkeypatch.setattr(deliverer_module.Load, "read", recorded)
    with deliverer.threaded():
        assert deliverer.pool is not None
        deliverer.pool.submit(busy.wait, 3)
        try:
            deliverer.deliver_batch(rows[:1], now_ms, rows[1:])
            assert deliverer.deliver_batch(rows[1:], now_ms).delivered == 2
        finally:
            busy.set()
    assert threads == {threading.current_thread().name}
    assert bodies(store) == [b"0", b"1", b"2"]


def test_a_thread_that_has_not_ended_is_not_waited_for(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliverer_module, "AHEAD_ROWS", 1)
    rows, now_ms = append_timers(store, *[b"%d" % n for n in range(8)]), store.clock.now_ms()
    deliverer, begun, go_on = (
        TimerDeliverer(store, PRECISION_MS),
        threading.Event(),
        threading.Event(),
    )
    ahead, read, here = list[int](), deliverer_module.Load.read, threading.current_thread()

    def blocked(load: deliverer_module.Load) -> None:
        if threading.current_thread() is not here:
            ahead.append(load.rows.size)
            begun.set()
            assert go_on.wait(60)
        read(load)

    monkeypatch.setattr(deliverer_module.Load, "read", blocked)
    with deliverer.threaded():
        deliverer.deliver_batch(rows[:2], now_ms, rows[2:4])
        assert begun.wait(60)
        try:
            assert deliverer.deliver_batch(rows[2:4], now_ms, rows[4:6]).delivered == 2
            assert not go_on.is_set()
        finally:
            go_on.set()
        wait_for_thread(deliverer)
        assert deliverer.deliver_batch(rows[4:6], now_ms, rows[6:]).delivered == 2
        wait_for_thread(deliverer)
        assert deliverer.deliver_batch(rows[6:], now_ms).delivered == 2
    assert ahead == [2, 2]  # nothing began while the thread was busy
    assert bodies(store) == [b"%d" % n for n in range(8)]
