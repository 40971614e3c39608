"""The timer store with a manual clock: timers are on time and once, across restarts and kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.timer_rig import TimerRig

DAY_MS = 86_400_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path).open()
    yield rig
    if rig.is_open:
        rig.close()


@pytest.mark.parametrize("delay_ms", [1, 7, 999, 1_000, 1_001, 61_234, 3_600_000, 3 * DAY_MS])
def test_a_timer_is_delivered_at_its_millisecond(rig: TimerRig, delay_ms: int) -> None:
    due_ms = rig.clock.now_ms() + delay_ms
    rig.put(due_ms)
    rig.advance(delay_ms - 1)
    assert rig.delivered() == []
    rig.advance(1)
    [record] = rig.delivered()
    assert (record.body, record.store_ms) == (b"body", due_ms)
    rig.advance(10_000)
    assert len(rig.delivered()) == 1
    assert rig.timers.counts.total == 0


def test_a_time_in_the_past_is_delivered_at_once(rig: TimerRig) -> None:
    rig.put(rig.clock.now_ms())
    assert rig.bodies() == [b"body"]


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("asleep_ms", [0, 3_000, 30 * DAY_MS])
def test_nothing_is_lost_duplicated_or_early_across_a_restart(
    rig: TimerRig, end: str, persist: bool, asleep_ms: int
) -> None:
    now_ms = rig.clock.now_ms()
    for number in range(200):
        rig.put(now_ms + 37 * number + 1, body=b"%d" % number)
    rig.advance(37 * 100)
    if persist:
        assert rig.persist()
    rig.advance(37 * 20)
    before = rig.bodies()
    getattr(rig, end)()
    rig.clock.advance(asleep_ms)
    rig.open()
    assert rig.bodies()[: len(before)] == before
    rig.advance(20_000)
    assert rig.bodies() == [b"%d" % number for number in range(200)]
    assert all(r.store_ms >= now_ms + 37 * n + 1 for n, r in enumerate(rig.delivered()))
    assert rig.timers.counts.total == 0
    assert rig.notices == []


@pytest.mark.sampled
@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "config/duemq.timers.json", "all"])
def test_lost_files_are_rebuilt(rig: TimerRig, lost: str, tmp_path: Path) -> None:
    import shutil

    now_ms = rig.clock.now_ms()
    for number in range(200):
        rig.put(now_ms + 50 * number + 1, body=b"%d" % number)
    rig.advance(5_000)
    rig.close()
    names = ["timerwheel", "timerlog", "config/duemq.timers.json", "config/timercheck"]
    for name in names if lost == "all" else [lost]:
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        (tmp_path / f"{name}.bak").unlink(missing_ok=True)
    rig.open()
    rig.advance(20_000)
    assert rig.bodies() == [b"%d" % number for number in range(200)]
    assert rig.notices
    assert rig.timers.counts.total == 0


def test_the_counts_include_a_topic_that_was_unknown_at_the_start(
    rig: TimerRig, tmp_path: Path
) -> None:
    """A topic created later has the same count."""
    rig.put(rig.clock.now_ms() + 5_000, topic="New")
    rig.close()
    (tmp_path / "config" / "duemq.timers.json").unlink()
    (tmp_path / "config" / "duemq.timers.json.bak").unlink(missing_ok=True)
    (tmp_path / "config" / "timercheck").unlink()
    rig.open()
    assert rig.timers.counts.by_topic() == {"New": 1}
    rig.store.topics.set_routing("New", write_queues=4, read_queues=4, perm=6)
    rig.advance(5_000)
    assert rig.bodies("New") == [b"body"]
    assert rig.timers.counts.by_topic() == {}


def test_what_is_delivered_reaches_to_the_first_timer_that_is_not(rig: TimerRig) -> None:
    now_ms = rig.clock.now_ms()
    assert rig.timers.delivered_ms(now_ms) == now_ms
    rig.put(now_ms + 5_000)
    rig.put(now_ms + 7_500)
    rig.advance(4_999)
    assert rig.timers.delivered_ms(rig.clock.now_ms()) == now_ms + 4_999
    rig.clock.advance(2_001)  # time passes before the next turn
    assert rig.timers.delivered_ms(rig.clock.now_ms()) == now_ms + 4_999
    rig.work()
    assert rig.timers.delivered_ms(rig.clock.now_ms()) == now_ms + 7_000
    rig.clock.advance(100_000)
    assert now_ms + 7_000 <= rig.timers.delivered_ms(rig.clock.now_ms()) <= now_ms + 7_499
    rig.work()
    assert rig.timers.delivered_ms(rig.clock.now_ms()) == rig.clock.now_ms()


def test_nothing_counts_as_delivered_while_timers_are_not_enqueued(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, stop_enqueue=True).open()
    rig.put(rig.clock.now_ms() + 5_000)
    assert rig.timers.delivered_ms(rig.clock.now_ms()) == 0
    rig.is_sound = False
    rig.close()
