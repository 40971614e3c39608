"""Views of timers for operators: summary, lists, runtime info and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from delayed_delivery.steps import at_once, in_turns
from duemq.metrics.loop_collector import LoopCollector
from duemq_common.errors import RequestError
from tests.support.timer_rig import TimerRig
from tests.support.work_per_turn import WorkPerTurn
from timer_store import views
from timer_store.collector import StoreCollector
from timer_store.kernels import wheel as wheel_kernels
from timer_store.layout import WHEEL_SLOTS
from timer_store.log import wheel
from timer_store.pending import listing

HOUR_MS = 3_600_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path).open()
    yield rig
    if rig.is_open:
        rig.close()


def test_the_summary(rig: TimerRig) -> None:
    now_ms = rig.clock.now_ms()
    for number in range(10):
        rig.put(now_ms + 1_000 + number, "T")
    for number in range(5):
        rig.put(now_ms + HOUR_MS + number, "U")
    rig.put(now_ms + 130_000, "U")
    view = at_once(views.summary(rig.timers))
    assert (view["pending"], view["topics"]) == (16, {"T": 10, "U": 6})
    assert view["next_due_ms"] == now_ms + 1_000
    assert (view["enqueue"]["enqueued"], view["delivered"]) == (16, 0)
    assert sum(view["per_minute"]["counts"]) == 11
    rig.advance(2_000)
    view = at_once(views.summary(rig.timers))
    assert (view["pending"], view["delivered"]) == (6, 10)
    assert view["dequeue"]["per_second"]["10"] == 1.0
    assert view["lateness_ms"]["ordinary"]["max"] == 0
    assert view["next_due_ms"] == now_ms + 130_000
    assert view["slots"]["used"] >= 2


def test_a_store_without_timers(rig: TimerRig) -> None:
    view = at_once(views.summary(rig.timers))
    assert (view["pending"], view["topics"], view["next_due_ms"]) == (0, {}, None)
    assert (view["enqueue"]["lag_units"], view["dequeue"]["lag_units"]) == (0, 0)


def test_backlogs(rig: TimerRig) -> None:
    now_ms = rig.clock.now_ms()
    rig.timers.reconfigure(type(rig.config)(stop_enqueue=True, stop_dequeue=True))
    for _ in range(3):
        rig.put(now_ms + 5_000)
    rig.clock.advance(2_000)
    assert views.enqueue_view(rig.timers, now_ms + 2_000) | {"per_second": 0} == {
        "lag_units": 3,
        "lag_ms": 2_000,
        "enqueued": 0,
        "per_second": 0,
        "blocked_by": "",
        "stopped": True,
    }
    rig.timers.reconfigure(type(rig.config)(stop_dequeue=True))
    rig.work()
    rig.advance(10_000)
    late = views.dequeue_view(rig.timers, rig.clock.now_ms())
    assert (late["lag_units"], late["lag_ms"]) == (3, 7_000)
    runtime = views.runtime_view(rig.timers)
    assert (runtime["timerReadBehind"], runtime["timerCongestNum"]) == ("7", "3")


def test_full_slots(tmp_path: Path) -> None:
    rig = TimerRig(tmp_path, slot_timers_max=4).open()
    due_ms = rig.clock.now_ms() // 1_000 * 1_000 + HOUR_MS + 1
    for number in range(4):
        rig.put(due_ms + number)
    slots = at_once(views.slots_view(rig.timers))
    assert (slots["congested"], slots["limit"]) == (1, 4)
    assert slots["fullest"] == [{"from_ms": due_ms - 1, "count": 4}]
    rig.close()


def test_slots_are_counted_without_a_list_of_them(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop waits while lists of slots are made and summed."""
    now_ms = rig.clock.now_ms()
    for number in range(20):
        rig.put(now_ms + 60_000 + number * 60_000)
    rig.work()

    lists, live_slots = list[int](), wheel_kernels.live_slots

    def listed(*args: Any) -> Any:
        lists.append(args[3])
        return live_slots(*args)

    monkeypatch.setattr(wheel_kernels, "live_slots", listed)
    assert at_once(views.slots_view(rig.timers))["used"] == 20
    fields = {"from_ms": str(now_ms), "width_ms": "600000", "count": "2"}
    forecast = at_once(views.forecast_view(rig.timers, fields))
    assert (forecast["counts"], forecast["later"]) == ([10, 10], 0)
    assert views.overdue(rig.timers, now_ms + 10 * 60_000) == 9
    assert lists == []
    assert at_once(views.summary(rig.timers))["pending"] == 20
    assert len(lists) == 1  # for the next due time
    at_once(views.list_view(rig.timers, {}))
    assert len(lists) > 1


def test_a_list_describes_a_few_timers_at_a_time(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = rig.clock.now_ms()
    for number in range(10):
        rig.put(now_ms + 60_000 + number * 60_000, UNIQ_KEY="U")
    rig.work()
    rig.store.index.catch_up()
    monkeypatch.setattr(listing, "DESCRIBED_PER_STEP", 4)
    for fields in ({}, {"key": "U"}):
        work = WorkPerTurn(monkeypatch, listing, "describe")
        view = views.list_view(rig.timers, fields)
        page = asyncio.run(work.during(in_turns(view) if isinstance(view, Generator) else view))
        assert len(page["timers"]) == 10
        assert (work.most, work.total) == (4, 10)


@pytest.mark.parametrize("view", ["summary", "forecast", "metrics"])
def test_a_full_wheel_is_counted_in_steps(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    now_ms = rig.clock.now_ms()
    rig.put(now_ms + 60_000)
    work = [
        WorkPerTurn(monkeypatch, wheel, name, lambda data, pages, ticks, *_: ticks[1] - ticks[0])
        for name in ("bin_slots", "fullest_slots")
    ]

    async def scraped() -> None:
        collector = LoopCollector(StoreCollector(rig.timers), asyncio.get_running_loop())
        await asyncio.to_thread(lambda: list(collector.collect()))

    async def shown() -> None:
        if view == "metrics":
            await scraped()
        elif view == "summary":
            await in_turns(views.summary(rig.timers))
        else:
            await in_turns(views.forecast_view(rig.timers, {"from_ms": str(now_ms)}))

    asyncio.run(work[0].during(work[1].during(shown())))
    assert max(one.most for one in work) == wheel.STEP_SLOTS
    assert max(one.total for one in work) == WHEEL_SLOTS


def test_lists_and_forecasts_are_requested(rig: TimerRig) -> None:
    now_ms = rig.clock.now_ms()
    for number in range(30):
        rig.put(now_ms + 60_000 + number * 60_000, "TU"[number % 2])
    requested: dict[str, Any] = dict(views.admin_views(lambda: rig.timers, lambda: None))
    fields = {"topic": "U", "limit": "4", "skip": "2"}
    page: Any = at_once(requested["list"](fields))
    assert [t["due_ms"] for t in page["timers"]] == [
        now_ms + (6 + 2 * n) * 60_000 for n in range(4)
    ]
    more: Any = at_once(requested["list"](fields | {"skip": "0", "cursor": page["cursor"]}))
    assert more["timers"][0]["due_ms"] == now_ms + 14 * 60_000
    fields = {"from_ms": str(now_ms), "width_ms": "600000", "count": "2"}
    found: Any = at_once(requested["forecast"](fields))
    assert (found["counts"], found["later"], found["pos"]) == ([10, 10], 10, None)


@pytest.mark.parametrize(
    ("view", "fields"),
    [
        ("list", {"limit": "-1"}),
        ("list", {"limit": "1001"}),
        ("list", {"from_ms": "soon"}),
        ("list", {"to_ms": "9" * 25}),
        ("list", {"cursor": "1_2_x"}),
        ("forecast", {"count": "10001"}),
        ("forecast", {"pos": "-5"}),
    ],
)
def test_illegal_view_requests(rig: TimerRig, view: str, fields: dict[str, str]) -> None:
    requested = views.admin_views(lambda: rig.timers, lambda: None)[view]
    with pytest.raises(RequestError):
        at_once(requested(fields))  # type: ignore[call-arg]


def test_a_view_before_the_start() -> None:
    requested = views.admin_views(lambda: None, lambda: None)
    assert requested["runtime"]() == {}
    with pytest.raises(RequestError, match="does not run"):
        requested["summary"]()


@pytest.mark.finding("3D9")
@pytest.mark.parametrize("view", ["summary", "list", "forecast"])
def test_a_view_of_a_replica_names_its_master(view: str) -> None:
    requested = views.admin_views(lambda: None, lambda: "10.0.0.1:10911")
    with pytest.raises(RequestError, match=r"is a replica.*--broker 10\.0\.0\.1:10911"):
        requested[view]()


def test_the_metrics(rig: TimerRig) -> None:
    registry = CollectorRegistry()
    registry.register(StoreCollector(rig.timers))
    now_ms = rig.clock.now_ms()
    for delay_ms in (1_000, 1_000, 30_000, HOUR_MS):
        rig.put(now_ms + delay_ms, "T")
    rig.advance(1_500)
    text = generate_latest(registry).decode()
    for line in (
        "duemq_timer_enqueued_total 4.0",
        "duemq_timer_rolled_total 0.0",
        "duemq_timer_congested_slots 0.0",
        'duemq_timer_lateness_seconds_count{topics="ordinary"} 2.0',
        "rocketmq_timer_enqueue_lag 0.0",
        "rocketmq_timer_dequeue_lag 2.0",
        'rocketmq_timer_dequeue_total{topic="T"} 2.0',
        'rocketmq_timing_messages{topic="T"} 2.0',
        'rocketmq_timer_message_snapshot{timer_bound_s="60"} 1.0',
        'rocketmq_timer_message_snapshot{timer_bound_s="3600"} 1.0',
    ):
        assert line in text.splitlines(), line


@pytest.mark.parametrize("persist", [True, False])
def test_metrics_of_request_61_are_exact_after_a_crash(rig: TimerRig, persist: bool) -> None:
    now_ms = rig.clock.now_ms()
    for number in range(20):
        rig.put(now_ms + 1_000 * (number + 1), "TU"[number % 2])
    rig.persist()
    rig.advance(5_000)
    rig.put(now_ms + HOUR_MS, "U")
    if persist:
        rig.persist()
    rig.kill()
    rig.open()
    assert rig.persist(last=True)
    counts = rig.timers.files.metrics.counts
    assert {name: count.count for name, count in counts.items()} == {"T": 7, "U": 9}
    assert rig.timers.counts.by_topic() == {"T": 7, "U": 9}
