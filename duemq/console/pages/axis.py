"""Time axis: past deliveries with their lateness, and pending messages, on one scale."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.console.blocks import Chart, Key
from duemq.console.catalogue import Translate
from duemq.http.broker_states import BrokerState, of_members
from duemq.http.deliveries import PastDeliveries, deliveries_of, forecast_of
from duemq.http.endpoints import JsonValue
from duemq.http.sessions import AccountSession
from duemq_common.charts import COLOURS, Point, Series, chart

MINUTE_MS: Final = 60_000
LIMIT_SHARE_MIN: Final = 0.2  # of the capacity; a lower chart has no line for it
SPANS: Final[Mapping[str, tuple[int, int]]] = {
    "1min": (1_000, 60),
    "10min": (10_000, 60),
    "1h": (MINUTE_MS, 60),
    "6h": (5 * MINUTE_MS, 72),
    "1d": (15 * MINUTE_MS, 96),
    "1w": (120 * MINUTE_MS, 84),
    "30d": (480 * MINUTE_MS, 90),
    "1y": (5_760 * MINUTE_MS, 92),
}
"""Duration and number of the bins by length of the axis."""


@dataclass(frozen=True, slots=True)
class Window:
    """Range of the axis, divided into bins.

    Attributes:
        span: Name of the length.
    """

    span: str
    from_ms: int
    width_ms: int
    bins: int

    @property
    def until_ms(self) -> int:
        """End of the last bin."""
        return self.from_ms + self.bins * self.width_ms

    @property
    def length_ms(self) -> int:
        """Length of the axis."""
        return self.bins * self.width_ms

    @property
    def past_width_ms(self) -> int:
        """Duration of the bins of past deliveries, at least a minute."""
        return max(self.width_ms, MINUTE_MS)


def window_of(span: str, at_ms: int) -> Window:
    """Return the window of a span; `at_ms` is a quarter after its start."""
    span = span if span in SPANS else "1h"
    width_ms, bins = SPANS[span]
    aligned_ms = max(width_ms, MINUTE_MS)
    first_ms = at_ms - at_ms % aligned_ms - bins // 4 * width_ms
    return Window(span, max(first_ms - first_ms % aligned_ms, 0), width_ms, bins)


@dataclass(frozen=True, slots=True)
class AxisData:
    """Counts of all brokers, as points of charts; a value of None is not known.

    Attributes:
        late_ms: Lateness of 50 %, of 99 % and of all deliveries, each the highest of the bin.
        unknown: Brokers whose part is missing.
        rough: Brokers that count some timers too early, see `forecast_of`.
    """

    delivered: Sequence[Point]
    late_ms: Sequence[Sequence[Point]]
    pending: Sequence[Point]
    unknown: Sequence[str]
    rough: Sequence[str] = ()


async def axis_data(
    session: AccountSession, members: Sequence[BrokerMember], window: Window, now_ms: int
) -> AxisData:
    """Return the data of a window; what a broker does not report is unknown."""

    rough: list[str] = []

    async def pending(member: BrokerMember) -> JsonValue:
        forecast = await forecast_of(
            session, member.address, window.from_ms, window.width_ms, window.bins
        )
        rough.extend([] if forecast.is_exact else [member.name])
        return forecast.counts

    async def past(member: BrokerMember) -> JsonValue:
        return list((await deliveries_of(session, member.address)).values())

    forecasts, histories = await asyncio.gather(
        of_members(members, pending), of_members(members, past)
    )
    unknown = {one.member.name for one in (*forecasts, *histories) if one.value is None}
    delivered, late_ms = _past_points(histories, window, now_ms)
    pending_points = _pending_points(forecasts, window, now_ms)
    return AxisData(delivered, late_ms, pending_points, sorted(unknown), sorted(rough))


def _pending_points(states: Sequence[BrokerState], window: Window, now_ms: int) -> list[Point]:
    counts = [state.value for state in states if state.value is not None]
    points: list[Point] = []
    for index in range(window.bins):
        start_ms = window.from_ms + index * window.width_ms
        if start_ms + window.width_ms > now_ms:
            points.append((start_ms, sum(each[index] for each in counts) if counts else None))
    return points


def _past_points(
    states: Sequence[BrokerState], window: Window, now_ms: int
) -> tuple[list[Point], list[list[Point]]]:
    histories: list[PastDeliveries] = [one for state in states for one in state.value or ()]
    if not histories:
        return [], []
    since_ms = max(one.since_ms for one in histories)
    first_ms = max(window.from_ms, since_ms - since_ms % MINUTE_MS)
    counts: dict[int, int] = {}
    late_ms: tuple[dict[int, int], ...] = ({}, {}, {})
    for one in histories:
        for minute_ms, count, *quantiles in one.rows:
            if first_ms <= minute_ms < window.until_ms:
                start_ms = minute_ms - minute_ms % window.past_width_ms
                counts[start_ms] = counts.get(start_ms, 0) + count
                for highest, value in zip(late_ms, quantiles, strict=True):
                    highest[start_ms] = max(highest.get(start_ms, 0), value)
    first_ms -= first_ms % window.past_width_ms
    end_ms = min(now_ms, window.until_ms)
    starts = range(first_ms, max(end_ms, first_ms), window.past_width_ms)
    delivered: list[Point] = [(ms, counts.get(ms, 0)) for ms in starts]
    return delivered, [[(ms, highest.get(ms)) for ms in starts] for highest in late_ms]


def axis_link(span: str, centre_ms: int, capacity: int = 0) -> str:
    """Return the link to a span around a time; `window_of` puts `at` a quarter after its start."""
    width_ms, bins = SPANS[span]
    query = {"span": span, "at": max(centre_ms - width_ms * bins // 4, 0)}
    return f"/?{urlencode(query | ({'capacity': capacity} if capacity else {}))}"


def zoomed_link(window: Window, start_ms: int, capacity: int) -> str:
    """Return the link from a bin to the shortest span that contains it; empty: it is the last."""
    width_ms = window.width_ms
    for span, (bin_ms, bins) in SPANS.items():
        if bin_ms * bins >= width_ms and bin_ms < width_ms:
            return axis_link(span, start_ms + width_ms // 2, capacity)
    return ""


def _moves(window: Window, capacity: int) -> list[tuple[Key, str]]:
    """Return links that move the window by its half, and to the next shorter and longer span."""
    names, centre_ms = list(SPANS), window.from_ms + window.length_ms // 2
    index, half_ms = names.index(window.span), window.length_ms // 2
    moves = [
        (Key("axis.earlier"), axis_link(window.span, centre_ms - half_ms, capacity)),
        (Key("axis.later"), axis_link(window.span, centre_ms + half_ms, capacity)),
    ]
    if index:
        moves.append((Key("axis.in"), axis_link(names[index - 1], centre_ms, capacity)))
    if index + 1 < len(names):
        moves.append((Key("axis.out"), axis_link(names[index + 1], centre_ms, capacity)))
    return moves


def axis_charts(
    data: AxisData, window: Window, now_ms: int, text: Translate, *, root: str, capacity: int = 0
) -> list[Chart]:
    """Return the chart of counts, with links to other spans, and that of the lateness.

    Args:
        root: Path of the console.
        capacity: Deliveries per second that consumers can take; 0: not given.
    """
    edges: list[Point] = [(window.from_ms, None), (window.until_ms, None)]
    band = (text("axis.past"), window.from_ms, min(max(now_ms, window.from_ms), window.until_ms))
    most = max((value for _, value in data.pending if value is not None), default=0)
    limit = capacity * window.width_ms / 1_000
    counts = chart(
        text("axis.title"),
        [
            Series(text("axis.delivered"), data.delivered, COLOURS[1], bar_ms=window.past_width_ms),
            Series(text("axis.pending"), data.pending, COLOURS[0], bar_ms=window.width_ms),
            Series(text("axis.now"), edges, "var(--soft)"),
        ],
        shown=lambda value: f"{value:,.0f}",
        band=band,
        annotations=[(now_ms, text("axis.now"))],
        limit=limit if capacity and most >= limit * LIMIT_SHARE_MIN else None,
        link=lambda ms: root + link if (link := zoomed_link(window, ms, capacity)) else "",
    )
    notes = [text("axis.unknown", brokers=", ".join(data.unknown))] if data.unknown else []
    if data.rough:
        notes.append(text("axis.rough", brokers=", ".join(data.rough)))
    if capacity:
        share = f"{most / limit:.1%}"
        notes.append(text("axis.share", most=f"{most:,.0f}", limit=f"{limit:,.0f}", share=share))
    more = f"&capacity={capacity}" if capacity else ""
    ranges = [(Key(f"span.{span}"), f"/?span={span}{more}", span == window.span) for span in SPANS]
    moves = _moves(window, capacity)
    charts = [Chart(Key("axis.title"), counts, ranges, moves, " ".join(notes))]
    if any(value is not None for points in data.late_ms for _, value in points):
        names = ("axis.p50", "axis.p99", "axis.highest")
        late = chart(
            text("axis.lateness"),
            [
                Series(text(name), [edges[0], *points, edges[1]], colour)
                for name, points, colour in zip(names, data.late_ms, COLOURS, strict=False)
            ],
            shown=lambda value: f"{value:,.0f} ms",
        )
        charts.append(Chart(Key("axis.lateness"), late))
    return charts
