"""Deliveries to come and past ones: pending messages by due time, deliveries by minute.

A broker whose part is not known has a reason in `failure` instead of numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from duemq.client.admin.cluster import BrokerMember
from duemq.http.broker_states import BrokerState, of_masters
from duemq.http.endpoints import Call, Endpoint, JsonValue
from duemq.http.pending import TimeMs
from duemq.http.sessions import AccountSession
from duemq.net.decisions import TIME_MS_MAX
from duemq.net.view_names import (
    LEVELS_FORECAST_VIEW,
    LEVELS_HISTORY_VIEW,
    TIMERS_FORECAST_VIEW,
    TIMERS_HISTORY_VIEW,
)

Kind = Literal["timer", "level"]
FORECAST_S: Final = 0.1  # time for the pieces of a forecast; each takes a turn of the broker
HISTORY_VIEWS: Final[Mapping[Kind, str]] = {
    "timer": TIMERS_HISTORY_VIEW,
    "level": LEVELS_HISTORY_VIEW,
}
BINS_MAX: Final = 10_000
MINUTE_MS: Final = 60_000


class ForecastQuery(msgspec.Struct, kw_only=True):
    """Range of due times, divided into bins.

    Attributes:
        from_ms: Start of the first bin, in ms since the epoch; null: now.
        width_ms: Duration of a bin, at least the precision of the wheel.
        bins: Number of bins.
    """

    from_ms: TimeMs | None = None
    width_ms: Annotated[int, Meta(ge=1, le=TIME_MS_MAX)] = MINUTE_MS
    bins: Annotated[int, Meta(ge=1, le=BINS_MAX)] = 60


class ForecastBins(msgspec.Struct, kw_only=True):
    """Pending messages of one broker by due time, of levels and timers.

    Attributes:
        from_ms, width_ms: Start of the first bin and duration of each, rounded down to the
            precision of the wheel.
        counts: Number of messages in each bin.
        is_exact: Whether timers that are due after the wheel's window are in the bin of their due
            time; otherwise some are counted too early.
    """

    from_ms: int
    width_ms: int
    counts: list[int]
    is_exact: bool


class ForecastRow(msgspec.Struct, kw_only=True):
    """Forecast of one broker; null: it is not known, for the reason in `failure`."""

    broker: str
    forecast: ForecastBins | None
    failure: str


class Forecasts(msgspec.Struct):
    """Forecasts of all masters."""

    brokers: list[ForecastRow]


class PastDeliveries(msgspec.Struct):
    """Deliveries of the last day by one engine of a broker.

    Attributes:
        since_ms: Start of the broker's process; what was delivered before is not known.
        rows: Minute, deliveries, lateness of 50 %, of 99 % and of all; without empty minutes.
    """

    since_ms: int
    rows: list[tuple[int, int, int, int, int]]


class DeliveredMinute(msgspec.Struct):
    """Deliveries of a minute; minutes without any have none.

    Attributes:
        kind: Whether levels or timers were delivered.
        minute_ms: Start of the minute, in ms since the epoch.
        late_p50_ms, late_p99_ms, late_max_ms: Lateness of 50 %, of 99 % and of all.
    """

    kind: Kind
    minute_ms: int
    delivered: int
    late_p50_ms: int
    late_p99_ms: int
    late_max_ms: int


class DeliveriesRow(msgspec.Struct, kw_only=True):
    """Deliveries of one broker in the last day; null: not known, for the reason in `failure`.

    Attributes:
        since_ms: Start of the broker's process; what was delivered before is not known.
    """

    broker: str
    since_ms: int | None
    minutes: list[DeliveredMinute] | None
    failure: str


class Deliveries(msgspec.Struct):
    """Deliveries of all masters."""

    brokers: list[DeliveriesRow]


async def show_forecast(call: Call) -> Forecasts:
    """Return the pending messages of each master by due time."""
    query: ForecastQuery = call.query or ForecastQuery()
    session = call.session

    async def part(member: BrokerMember) -> ForecastBins:
        return await forecast_of(session, member.address, query.from_ms, query.width_ms, query.bins)

    states = await of_masters(session, part)
    rows = [
        ForecastRow(broker=one.member.name, forecast=one.value, failure=one.failure)
        for one in states
    ]
    return Forecasts(rows)


async def forecast_of(
    session: AccountSession, address: str, from_ms: int | None, width_ms: int, count: int
) -> ForecastBins:
    """Return the forecast of one broker.

    The first response of the timers has all of them. The following ones move timers that are due
    after the wheel's window, and are in an earlier slot until then, to the bin of their due time.
    They are as many as the timer log has millions of units, so they end after a bounded time.

    Args:
        from_ms: Start of the first bin; None: now.
    """
    fields: dict[str, object] = {"width_ms": width_ms, "count": count}
    if from_ms is not None:
        fields["from_ms"] = from_ms
    end_s = asyncio.get_running_loop().time() + FORECAST_S
    view: JsonValue = await session.admin.view(address, TIMERS_FORECAST_VIEW, **fields)
    bins = {"from_ms": view["from_ms"], "width_ms": view["width_ms"]}
    levels: JsonValue = await session.admin.view(address, LEVELS_FORECAST_VIEW, **bins, count=count)
    counts = _added(levels["counts"], view["counts"])
    while view["pos"] is not None and asyncio.get_running_loop().time() < end_s:
        fields |= {"pos": view["pos"], "from_ms": view["from_ms"]}
        view = await session.admin.view(address, TIMERS_FORECAST_VIEW, **fields)
        counts = _added(counts, view["counts"])
    return ForecastBins(**bins, counts=counts, is_exact=view["pos"] is None)


def _added(counts: Sequence[int], more: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(counts, more, strict=True)]


async def show_deliveries(call: Call) -> Deliveries:
    """Return the deliveries of each master in the last day, by minute."""
    session = call.session

    async def part(member: BrokerMember) -> dict[Kind, PastDeliveries]:
        return await deliveries_of(session, member.address)

    states = await of_masters(session, part)
    return Deliveries(list(map(_deliveries_row, states)))


async def deliveries_of(session: AccountSession, address: str) -> dict[Kind, PastDeliveries]:
    """Return the deliveries of the engines of a broker that run, by kind."""
    requests = (session.admin.view(address, view) for view in HISTORY_VIEWS.values())
    histories = zip(HISTORY_VIEWS, await asyncio.gather(*requests), strict=True)
    return {kind: msgspec.convert(view, PastDeliveries) for kind, view in histories if view}


def _deliveries_row(state: BrokerState) -> DeliveriesRow:
    parts: dict[Kind, PastDeliveries] = state.value or {}
    minutes = [DeliveredMinute(kind, *row) for kind, past in parts.items() for row in past.rows]
    return DeliveriesRow(
        broker=state.member.name,
        since_ms=max((past.since_ms for past in parts.values()), default=None),
        minutes=minutes if parts else None,
        failure=state.failure,
    )


ENDPOINTS: Final = (
    Endpoint(
        path="/forecast",
        handler=show_forecast,
        summary="Show how many pending messages are due, by time.",
        tag="operations",
        query=ForecastQuery,
        result=Forecasts,
    ),
    Endpoint(
        path="/deliveries",
        handler=show_deliveries,
        summary="Show the deliveries of the last day with their lateness, by minute.",
        tag="operations",
        result=Deliveries,
    ),
)
