"""Overview: figures of all brokers, the time axis, hottest seconds, engines and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypedDict

from duemq.console.blocks import Cell, Field, Form, Key, PageContent, Table, Tile, Tiles
from duemq.console.brokers import number_in, total
from duemq.console.call import PageCall
from duemq.console.pages.axis import axis_charts, axis_data, window_of
from duemq.http.broker_states import BrokerState, views
from duemq.http.endpoints import JsonValue
from duemq.net.view_names import LEVELS_VIEW, REPLICATION_VIEW, TIMERS_VIEW
from duemq_common.clock import SystemClock

HOTTEST: Final = 5
ENGINES: Final = ("broker", "address", "timers", "enqueue_lag", "delivery_lag", "levels", "reason")
REPLICAS: Final = ("broker", "address", "role", "state", "log_end", "lag", "reason")
CAPACITY_MAX: Final = 1_000_000_000


class FullSecond(TypedDict):
    """Second with many pending timers."""

    from_ms: int
    count: int


class SlotsPart(TypedDict):
    """Counts of slots."""

    fullest: list[FullSecond]


class EnqueuePart(TypedDict):
    """State of enqueueing."""

    blocked_by: str
    stopped: bool


class DequeuePart(TypedDict):
    """State of delivery."""

    refusal: str
    stopped: bool


class TimersPart(TypedDict):
    """Values of the timers' view without which the state of a broker is unknown."""

    quarantined: dict[str, int]
    slots: SlotsPart
    enqueue: EnqueuePart
    dequeue: DequeuePart


class LevelPart(TypedDict):
    """Values of one level."""

    next_due_ms: int | None
    quarantined: dict[str, int]
    lateness_ms: dict[str, JsonValue]


class LevelsPart(TypedDict):
    """Values of the levels' view without which their state is unknown."""

    pending: int
    levels: list[LevelPart]


async def overview(call: PageCall) -> PageContent:
    """Return the page of the whole cluster."""
    members = await call.session.members()
    masters = [member for member in members if member.is_master]
    timers, levels, replicas = await asyncio.gather(
        views(call.session, masters, TIMERS_VIEW, form=TimersPart),
        views(call.session, masters, LEVELS_VIEW, form=LevelsPart),
        views(call.session, members, REPLICATION_VIEW),
    )
    now_ms = _now_ms(timers)
    window = window_of(call.query.get("span", "1h"), call.number("at", now_ms))
    capacity = min(call.number("capacity", 0), CAPACITY_MAX)
    data = await axis_data(call.session, masters, window, now_ms)
    blocks = [
        _tiles(timers, levels, now_ms),
        *axis_charts(data, window, now_ms, call.text, root=call.root, capacity=capacity),
        _capacity_form(window.span, call.query.get("at", ""), capacity),
        _hottest(timers),
        _engines(timers, levels),
        _replicas(replicas),
    ]
    return PageContent(Key("nav.overview"), blocks, live=True)


def _capacity_form(span: str, start: str, capacity: int) -> Form:
    """Return the form that compares the pending messages with a capacity."""
    value = str(capacity) if capacity else ""
    field = Field("capacity", Key("axis.capacity"), value, "number")
    hidden = [(name, text) for name, text in (("span", span), ("at", start)) if text]
    return Form(Key("axis.compare"), "/", [field], hidden=hidden)


def _now_ms(states: Sequence[BrokerState]) -> int:
    """Return the clock of a broker, which may differ from that of this machine."""
    clocks = (number_in(state.value, "now_ms") for state in states)
    return next((ms for ms in clocks if ms is not None), None) or SystemClock().now_ms()


def _tiles(timers: Sequence[BrokerState], levels: Sequence[BrokerState], now_ms: int) -> Tiles:
    rows = [row for one in levels if one.value is not None for row in one.value["levels"]]
    p99 = [number_in(one.value, "lateness_ms", "ordinary", "p99") for one in timers]
    p99 += [number_in(row, "lateness_ms", "p99") for row in rows]
    next_due = [number_in(one.value, "next_due_ms") for one in timers]
    next_due += [number_in(row, "next_due_ms") for row in rows]
    due_times = [ms for ms in next_due if ms is not None]
    is_known = all(one.value is not None for one in (*timers, *levels))
    engines = [*rows, *(one.value for one in timers if one.value is not None)]
    quarantined = sum(sum(one["quarantined"].values()) for one in engines)
    return Tiles(
        [
            Tile(Key("overview.pending_timers"), Cell(total(timers, "pending"), "number")),
            Tile(Key("overview.pending_levels"), Cell(total(levels, "pending"), "number")),
            Tile(Key("overview.rate"), Cell(total(timers, "delivered_per_second"), "number")),
            Tile(Key("overview.late_p99"), _largest(p99, is_known=is_known)),
            Tile(Key("overview.overdue"), Cell(total(timers, "dequeue", "lag_units"), "number")),
            Tile(
                Key("overview.next_due"),
                Cell(min(due_times, default=0) if is_known else None, "time"),
            ),
            Tile(
                Key("overview.quarantined"),
                Cell(quarantined if is_known else None, "number"),
            ),
            Tile(Key("overview.clock"), Cell(now_ms - now_ms % 1_000, "time")),
        ]
    )


def _largest(lateness_ms: Sequence[JsonValue], *, is_known: bool) -> Cell:
    """Return the largest lateness of all brokers and levels; without a delivery there is none."""
    largest = max((ms for ms in lateness_ms if ms is not None), default=None)
    if not is_known:
        return Cell(None)
    return Cell("value.none", "key") if largest is None else Cell(largest, "ms")


def _hottest(timers: Sequence[BrokerState]) -> Table:
    seconds = [
        (second["count"], second["from_ms"], one.member.name)
        for one in timers
        for second in (one.value["slots"]["fullest"] if one.value is not None else ())
    ]
    rows = [
        [
            Cell(from_ms, "time", f"/timers?from={from_ms}&until={from_ms + 1_000}"),
            Cell(name),
            Cell(count, "number"),
        ]
        for count, from_ms, name in sorted(seconds, reverse=True)[:HOTTEST]
    ]
    is_known = all(one.value is not None for one in timers)
    empty = Key("overview.no_timers" if is_known else "value.unknown")
    return Table(Key("overview.hottest"), ("due", "broker", "timers"), rows, empty)


def _engines(timers: Sequence[BrokerState], levels: Sequence[BrokerState]) -> Table:
    rows = [
        [
            Cell(timer.member.name),
            Cell(timer.member.address, "code"),
            engine_cell(timer, _timer_trouble(timer.value)),
            Cell(number_in(timer.value, "enqueue", "lag_units"), "number"),
            Cell(number_in(timer.value, "dequeue", "lag_ms"), "ms"),
            engine_cell(level, ""),
            Cell(timer.failure or level.failure, "words"),
        ]
        for timer, level in zip(timers, levels, strict=True)
    ]
    return Table(Key("overview.engines"), ENGINES, rows)


def engine_cell(state: BrokerState, trouble: str) -> Cell:
    """Return the state of an engine: runs, blocked, off, or unknown."""
    if state.value is None:
        is_off = "does not run" in state.failure
        return Cell("engine.off", "key", state="bad") if is_off else Cell(None)
    if trouble:
        return Cell(trouble, "text", state="bad")
    return Cell("engine.runs", "key", state="good")


def _timer_trouble(value: JsonValue) -> str:
    if value is None:
        return ""
    reasons = [value["enqueue"]["blocked_by"], value["dequeue"]["refusal"]]
    for part in ("enqueue", "dequeue"):
        if value[part]["stopped"]:
            reasons.append(f"{part}: stopped")
    return "; ".join(reason for reason in reasons if reason)


def _replicas(states: Sequence[BrokerState]) -> Table:
    rows = []
    for one in states:
        value = one.value or {}
        rows.append(
            [
                Cell(one.member.name),
                Cell(one.member.address, "code"),
                Cell(value.get("role")),
                Cell(value.get("state")),
                Cell(value.get("logEnd"), "number"),
                Cell(0 if one.member.is_master and value else value.get("lagBytes"), "bytes"),
                Cell(one.failure or value.get("failure") or value.get("refusal") or "", "words"),
            ]
        )
    return Table(Key("overview.replicas"), REPLICAS, rows)
