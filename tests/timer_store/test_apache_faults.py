"""T1 to T24: faults of Apache's timer wheel that our timer store does not have."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from delayed_delivery.pending import Verdict
from duemq_common.topics import HALF_TOPIC, QUARANTINE_TOPIC, TIMER_TOPIC
from message_store.layout import SYS_PREPARED
from message_store.log.batch import PutBatch
from tests.support.stores import add_message
from tests.support.timer_rig import TimerRig

DAY_MS = 86_400_000
MESSAGE_ILLEGAL, SYSTEM_ERROR = 13, 1


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path).open()
    yield rig
    if rig.is_open:
        rig.close()


def put_raw(
    rig: TimerRig, properties: dict[str, str], topic: str = TIMER_TOPIC, **fields: object
) -> PutBatch:
    """Append a record without the put hook."""
    batch = PutBatch(1, 1)
    add_message(rig.store, batch, topic, 0, b"bad", properties=properties, **fields)
    rig.store.put(batch)
    rig.work()
    return batch


def fill(rig: TimerRig, count: int, *, every_ms: int = 37, start_ms: int = 1) -> list[int]:
    """Put `count` timers with their number as body; return the due times."""
    now_ms = rig.clock.now_ms()
    due_ms = [now_ms + start_ms + every_ms * number for number in range(count)]
    for number in range(count):
        rig.put(due_ms[number], body=b"%d" % number)
    return due_ms


def check_all(rig: TimerRig, due_ms: list[int], opened_ms: int = 0) -> None:
    """Check that each timer was delivered once, in order, at its due time or at the opening."""
    records = rig.delivered()
    assert [record.body for record in records] == [b"%d" % n for n in range(len(due_ms))]
    for record, next_ms in zip(records, due_ms, strict=True):
        assert next_ms <= record.store_ms <= max(next_ms, opened_ms)
    assert rig.timers.counts.total == 0


def reopen(rig: TimerRig, *, asleep_ms: int = 0, **config: int) -> int:
    """Kill the store and open it after some time with other settings."""
    if rig.is_open:
        rig.kill()
    rig.clock.advance(asleep_ms)
    if config:
        rig.config = TimerRig(rig.root, rig.clock, **config).config
    rig.open()
    return rig.clock.now_ms()


def test_t1_an_invalid_record_in_the_timer_topic_stops_nothing(rig: TimerRig) -> None:
    put_raw(rig, {"REAL_TOPIC": "T", "REAL_QID": "0"})
    put_raw(rig, {"TIMER_OUT_MS": "soon", "REAL_TOPIC": "T", "REAL_QID": "0"})
    put_raw(rig, {})
    due_ms = fill(rig, 3)
    rig.advance(1_000)
    check_all(rig, due_ms)
    assert len(rig.delivered(QUARANTINE_TOPIC)) == 3
    reopen(rig)
    assert len(rig.delivered(QUARANTINE_TOPIC)) == 3


def test_t1_a_client_cannot_send_one(rig: TimerRig) -> None:
    batch = PutBatch(1)
    add_message(rig.store, batch, TIMER_TOPIC, 0, b"stray", properties={"KEYS": "k"})
    rig.hook(batch, rig.clock.now_ms())
    assert batch.rows[0]["status"] == MESSAGE_ILLEGAL
    assert "send to your topic" in batch.remarks[0]


def test_t2_the_largest_message_is_delivered(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path)
    rig.store_changes = {"commitlog_file_bytes": 12 << 20, "message_bytes_max": 4 << 20}
    rig.open()
    body = bytes(4 << 20)
    rig.put(rig.clock.now_ms() + 5, body=body)
    due_ms = [rig.clock.now_ms() + 6]
    rig.put(due_ms[0])
    rig.advance(10)
    assert rig.bodies() == [body, b"body"]
    rig.close()


def test_t3_a_full_disk_drops_nothing(rig: TimerRig) -> None:
    due_ms = fill(rig, 50, every_ms=100)
    rig.advance(1_050)
    came = len(rig.bodies())
    rig.store.gate.refusal = "the disk is full"
    rig.advance(600_000)
    assert len(rig.bodies()) == came < 50
    rig.store.gate.refusal = ""
    rig.advance(1_000)
    check_all(rig, due_ms, rig.clock.now_ms())


@pytest.mark.parametrize("prop_bytes", [32_000, 32_600, 32_740, 32_760])
def test_t4_what_is_accepted_can_be_delivered(tmp_path: Path, prop_bytes: int) -> None:
    rig = TimerRig(tmp_path)
    rig.store_changes = {"commitlog_file_bytes": 1 << 20}
    rig.open()
    due_ms = rig.clock.now_ms() + 5
    batch = PutBatch(1)
    name = f"TIMER_DELIVER_MS\x01{due_ms}\x02x\x01\x02"
    properties = {"TIMER_DELIVER_MS": str(due_ms), "x": "x" * (prop_bytes - len(name))}
    add_message(rig.store, batch, "T", 0, b"body", properties=properties)
    rig.hook(batch, rig.clock.now_ms())
    rig.store.put(batch)
    rig.advance(10)
    accepted = batch.rows[0]["status"] == 0
    assert accepted == (prop_bytes == 32_000) or prop_bytes == 32_600
    assert len(rig.bodies()) == accepted
    assert accepted or batch.rows[0]["status"] == MESSAGE_ILLEGAL
    rig.close()


def test_t5_a_restart_with_a_queue_backlog_loses_nothing(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, stop_enqueue=True).open()
    due_ms = fill(rig, 20, every_ms=100)
    rig.advance(1_000)
    assert rig.persist(last=True)
    opened_ms = reopen(rig, asleep_ms=1_000_000, stop_enqueue=False)
    check_all(rig, due_ms, opened_ms)
    rig.close()


@pytest.mark.parametrize("precision_ms", [100, 1_000])
@pytest.mark.parametrize("end", ["close", "kill"])
def test_t6_outages_of_any_length(tmp_path: Path, precision_ms: int, end: str) -> None:
    rig = TimerRig(tmp_path, precision_ms=precision_ms).open()
    due_ms = fill(rig, 60, every_ms=50_000)
    rig.persist()
    getattr(rig, end)()
    opened_ms = reopen(rig, asleep_ms=400 * DAY_MS)
    check_all(rig, due_ms, opened_ms)
    rig.close()


def test_t7_an_unreadable_record_is_kept_and_reported(rig: TimerRig) -> None:
    damaged = rig.put(rig.clock.now_ms() + 10, UNIQ_KEY="U1").rows[0].copy()
    rig.put(rig.clock.now_ms() + 11, body=b"whole")
    file = rig.store.log.file_of(int(damaged["phys_offset"]))
    file.write(int(damaged["phys_offset"]) - file.base + 91, b"\xff")
    rig.advance(20)
    assert rig.bodies() == [b"whole"]
    (kept,) = rig.delivered(QUARANTINE_TOPIC)
    assert kept.properties["DUEMQ_REASON"] == "unreadable"
    assert kept.prepared_offset == -(int(damaged["phys_offset"]) + 1)
    assert rig.timers.counts.total == 0


def test_t7_retention_keeps_pending_messages(rig: TimerRig) -> None:
    rig.persist(last=True)
    first = rig.put(rig.clock.now_ms() + 2 * DAY_MS).rows[0]["phys_offset"]
    for _ in range(400):
        rig.put(rig.clock.now_ms() + 1, body=bytes(300))
    assert rig.store.log.end > 2 * rig.store.log.file_bytes
    assert rig.timers.first_pending_offset <= first
    rig.advance(2 * DAY_MS)
    rig.persist()
    later = rig.timers.first_pending_offset
    assert later is None or later > first


def test_t8_a_unit_whose_record_is_gone_delivers_nothing_else(rig: TimerRig) -> None:
    """The log loses its end, and other records take its place."""
    due_ms = fill(rig, 5, every_ms=1_000, start_ms=60_000)
    lost = rig.put(rig.clock.now_ms() + 30_000, body=b"lost").rows[0].copy()
    rig.kill()
    at = int(lost["phys_offset"])
    path = rig.root / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(int(lost["record_size"])))
    reopen(rig)
    assert rig.store.log.end == at
    put_raw(rig, {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": "1"}, topic="U")
    opened_ms = rig.clock.now_ms()
    rig.advance(100_000)
    check_all(rig, due_ms, opened_ms)
    assert len(rig.delivered("U")) == 1


@pytest.mark.parametrize("persist", [True, False])
def test_t9_a_kill_inside_a_slot_duplicates_nothing(rig: TimerRig, persist: bool) -> None:
    due_ms = fill(rig, 100, every_ms=7)
    rig.advance(333)
    if persist:
        rig.persist()
    rig.advance(200)
    opened_ms = reopen(rig)
    rig.advance(1_000)
    check_all(rig, due_ms, opened_ms)


def test_t10_a_refused_append_duplicates_no_other_timer(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = rig.clock.now_ms()
    add, calls = rig.timers.units.add, []

    def refuse_once(rows: npt.NDArray[np.void], **times: int) -> int:
        calls.append(len(rows))
        if len(calls) == 1:
            raise OSError(28, "no space left on device")
        return add(rows, **times)

    monkeypatch.setattr(rig.timers.units, "add", refuse_once)
    rig.put_many([(now_ms + 50 + n, "T", 0, b"%d" % n) for n in range(11)])
    rig.advance(1_000)
    check_all(rig, [now_ms + 50 + n for n in range(11)], rig.clock.now_ms())
    assert len(calls) >= 2


def test_t12_a_stalled_enqueue_stops_no_delivery(rig: TimerRig) -> None:
    due_ms = fill(rig, 20)
    rig.timers.reconfigure(TimerRig(rig.root, rig.clock, stop_enqueue=True).config)
    rig.put(rig.clock.now_ms() + 5, body=b"held")
    rig.advance(10_000)
    check_all(rig, due_ms)
    rig.timers.reconfigure(rig.config)
    rig.advance(1)
    assert rig.bodies()[-1] == b"held"


def test_t17_a_cancelled_timer_is_not_delivered(rig: TimerRig) -> None:
    now_ms = rig.clock.now_ms()
    timers = [int(rig.put(now_ms + ms).rows[0]["phys_offset"]) for ms in (100, 1_400, 9_000)]
    rig.advance(1_399)  # the first is delivered, the second staged, the third in its slot
    decided = rig.timers.decisions.cancel(np.array(timers, np.int64))
    expected = [Verdict.DELIVERED, Verdict.DONE, Verdict.DONE]
    assert decided.verdicts.tolist() == expected
    rig.advance(20_000)
    assert len(rig.bodies()) == 1


@pytest.mark.parametrize("before_ms", [9_000, 600, 1])
def test_t17_a_marker_works_until_its_target_is_delivered(rig: TimerRig, before_ms: int) -> None:
    due_ms = rig.clock.now_ms() + 10_000
    rig.put(due_ms, UNIQ_KEY="U1", body=b"cancelled")
    rig.put(due_ms, UNIQ_KEY="U2", body=b"kept")
    rig.advance(10_000 - before_ms)
    rig.put(due_ms, UNIQ_KEY="U1", TIMER_DEL_UNIQKEY="T+U1", body=b"0")
    rig.advance(20_000)
    assert rig.bodies() == [b"kept"]


def test_t18_every_timer_is_delivered_at_its_millisecond_during_a_backlog(rig: TimerRig) -> None:
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + 1_000, "T", 0, b"%d" % n) for n in range(5_000)])
    later = [now_ms + ms for ms in (1_001, 1_500, 2_000, 2_001)]
    for next_ms in later:
        rig.put(next_ms, "U")
    rig.advance(3_000)
    assert len(rig.bodies()) == 5_000
    assert {record.store_ms for record in rig.delivered()} == {now_ms + 1_000}
    assert [record.store_ms for record in rig.delivered("U")] == later


@pytest.mark.parametrize("step_ms", [-500, -5_000, -3 * DAY_MS])
def test_t19_a_clock_step_back_makes_nothing_early(rig: TimerRig, step_ms: int) -> None:
    rig.put(rig.clock.now_ms() + 2_000, body=b"0")
    first_ms = rig.clock.now_ms() + 2_000
    rig.advance(1_000)
    rig.clock.set_ms(rig.clock.now_ms() + step_ms)
    second_ms = rig.clock.now_ms() + 300
    rig.put(second_ms, "U")
    rig.advance(299)
    assert rig.delivered("U") == []
    rig.advance(first_ms + 1_000 - rig.clock.now_ms())
    assert len(rig.delivered("U")) == len(rig.delivered()) == 1
    assert rig.delivered()[0].store_ms >= first_ms


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize(("before", "after"), [(1_000, 100), (100, 1_000), (500, 200)])
def test_t20_another_precision_changes_no_due_time(
    tmp_path: Path, before: int, after: int, end: str
) -> None:
    rig = TimerRig(tmp_path, precision_ms=before).open()
    due_ms = fill(rig, 80, every_ms=331, start_ms=4_000)
    rig.put(rig.clock.now_ms() + 2 * DAY_MS, "U")
    rig.advance(8_000)
    rig.persist()
    getattr(rig, end)()
    opened_ms = reopen(rig, precision_ms=after)
    assert any("timerPrecisionMs" in notice for notice in rig.notices)
    rig.advance(60_000)
    records = rig.delivered()
    assert [record.body for record in records] == [b"%d" % n for n in range(80)]
    assert all(r.store_ms == d for r, d in zip(records, due_ms, strict=True) if d > opened_ms)
    rig.advance(2 * DAY_MS)
    assert len(rig.delivered("U")) == 1
    rig.close()


def test_t21_a_received_message_sent_again_with_a_new_time_is_pending(rig: TimerRig) -> None:
    rig.put(rig.clock.now_ms() + 10)
    rig.advance(10)
    (record,) = rig.delivered()
    properties = dict(record.properties)
    assert "TIMER_OUT_MS" in properties
    properties.pop("TIMER_DELIVER_MS")
    due_ms = rig.clock.now_ms() + 5_000
    rig.put(due_ms, **properties)
    rig.advance(4_999)
    assert len(rig.delivered()) == 1
    rig.advance(1)
    assert [r.store_ms for r in rig.delivered()][1:] == [due_ms]


def test_t22_flow_control_counts_exactly(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, slot_timers_max=5).open()
    due_ms = rig.clock.now_ms() + 5_500
    offsets = [int(rig.put(due_ms).rows[0]["phys_offset"]) for _ in range(5)]
    for _ in range(20):
        assert rig.put(due_ms).rows[0]["status"] == SYSTEM_ERROR
    rig.timers.decisions.cancel(np.array(offsets[:2], np.int64))
    for _ in range(2):
        rig.persist()
        reopen(rig)
        assert rig.timers.units.wheel.num(due_ms - 1) == 3
    assert [int(rig.put(due_ms).rows[0]["status"]) for _ in range(3)] == [0, 0, SYSTEM_ERROR]
    rig.advance(6_000)
    assert len(rig.bodies()) == 5
    rig.close()


def test_t23_a_half_message_is_no_timer(rig: TimerRig) -> None:
    batch = PutBatch(1)
    properties = {"TIMER_DELIVER_MS": str(rig.clock.now_ms() + 1_000), "REAL_TOPIC": "T"}
    add_message(
        rig.store, batch, HALF_TOPIC, 0, b"half", properties=properties, sys_flag=SYS_PREPARED
    )
    rig.hook(batch, rig.clock.now_ms())
    rig.store.put(batch)
    assert rig.timers.counts.total == 0
    rig.advance(5_000)
    assert rig.bodies() == []


def test_t23_timers_of_one_batch_have_their_own_times(rig: TimerRig) -> None:
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + ms, "T", 0, b"%d" % ms) for ms in (3_000, 1_000, 2_000)])
    rig.advance(1_500)
    assert rig.bodies() == [b"1000"]
    rig.advance(1_500)
    assert rig.bodies() == [b"1000", b"2000", b"3000"]


def test_t24_every_start_delivers_pending_timers(
    rig: TimerRig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No other broker has to activate it: a copy of the store delivers them, too."""
    due_ms = fill(rig, 10, start_ms=5_000)
    rig.close()
    copy = tmp_path_factory.mktemp("copy") / "store"
    shutil.copytree(rig.root, copy)
    other = TimerRig(copy, rig.clock).open()
    other.advance(10_000)
    check_all(other, due_ms)
    other.close()
