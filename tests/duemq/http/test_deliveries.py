"""Pending timers by due time and past deliveries by minute; forecasts take a bounded time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duemq.http import deliveries
from duemq.http.deliveries import MINUTE_MS, forecast_of
from duemq.net.view_names import LEVELS_FORECAST_VIEW
from tests.duemq.http.rig import api, json_of
from tests.support.running_broker import bodies_of, connected

HOUR_MS = 3_600_000


class PiecesOfForecast:
    """Session of a broker whose forecast has a number of pieces; None: it has no end."""

    def __init__(self, pieces: int | None) -> None:
        self.admin, self._pieces, self.requests = self, pieces, list[object]()

    async def view(self, address: str, name: str, **fields: Any) -> dict[str, Any]:
        bins = {"from_ms": 7, "width_ms": fields["width_ms"], "counts": [1] * fields["count"]}
        if name == LEVELS_FORECAST_VIEW:
            assert fields["from_ms"] == 7
            return bins
        self.requests.append((fields.get("pos"), fields.get("from_ms")))
        count = len(self.requests)
        return {**bins, "pos": None if count == self._pieces else count}


def test_a_forecast_ends_after_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = PiecesOfForecast(None)
    monkeypatch.setattr(deliveries, "FORECAST_S", 0.0)
    forecast = asyncio.run(forecast_of(session, "address", 0, MINUTE_MS, 60))
    assert (forecast.counts, forecast.is_exact) == ([2] * 60, False)
    assert session.requests == [(None, 0)]


def test_the_pieces_of_a_forecast_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pieces have the bins of the first one, whose start the broker chooses."""
    session: Any = PiecesOfForecast(3)
    monkeypatch.setattr(deliveries, "FORECAST_S", 600.0)
    forecast = asyncio.run(forecast_of(session, "address", None, MINUTE_MS, 60))
    assert (forecast.from_ms, forecast.counts, forecast.is_exact) == (7, [4] * 60, True)
    assert session.requests == [(None, None), (1, 7), (2, 7)]


def test_a_forecast_has_the_pending_timers(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            for hours in (1, 1, 3):
                message = {"topic": "T", "body": "b", "delay_ms": hours * HOUR_MS}
                assert (await client.post("/api/v1/messages", json=message)).status_code == 201
            [now] = (await json_of(client, "GET", "/timers"))["brokers"]
            start_ms = now["state"]["now_ms"] - HOUR_MS // 2
            path = f"/forecast?from_ms={start_ms}&width_ms={HOUR_MS}&bins=3"
            [row] = (await json_of(client, "GET", path))["brokers"]
            assert (row["broker"], row["failure"]) == ("test", "")
            assert row["forecast"]["width_ms"] == HOUR_MS
            assert (row["forecast"]["counts"], row["forecast"]["is_exact"]) == ([0, 2, 0], True)
            [row] = (await json_of(client, "GET", "/forecast"))["brokers"]
            assert len(row["forecast"]["counts"]) == 60
            for wrong in ("bins=0", "bins=10001", "width_ms=0"):
                assert (await client.get(f"/api/v1/forecast?{wrong}")).status_code == 400

    asyncio.run(main())


def test_a_forecast_has_the_pending_level_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path, messageDelayLevel="1h 3h") as (_, client):
            for when in ({"level": 1}, {"level": 2}, {"level": 2}, {"delay_ms": HOUR_MS}):
                message = {"topic": "T", "body": "b", **when}
                assert (await client.post("/api/v1/messages", json=message)).status_code == 201
            [now] = (await json_of(client, "GET", "/timers"))["brokers"]
            start_ms = now["state"]["now_ms"] - HOUR_MS // 2
            path = f"/forecast?from_ms={start_ms}&width_ms={HOUR_MS}&bins=4"
            [row] = (await json_of(client, "GET", path))["brokers"]
            assert row["forecast"]["counts"] == [0, 2, 0, 2]

    asyncio.run(main())


def test_deliveries_have_their_minutes(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path, messageDelayLevel="1s 1h") as (broker, client):
            for when in ({"delay_ms": 1}, {"level": 1}):
                message = {"topic": "T", "body": str(when), **when}
                assert (await client.post("/api/v1/messages", json=message)).status_code == 201
            async with connected(broker.address) as remote:
                count = 0
                while count < 2:
                    count += len(bodies_of(await remote.pull("T", count)))
            [row] = (await json_of(client, "GET", "/deliveries"))["brokers"]
            assert row["since_ms"] <= row["minutes"][0]["minute_ms"] + MINUTE_MS
            kinds = {(each["kind"], each["delivered"]) for each in row["minutes"]}
            assert kinds == {("timer", 1), ("level", 1)}
            assert all(0 <= each["late_p50_ms"] <= each["late_max_ms"] for each in row["minutes"])

    asyncio.run(main())


def test_engines_that_are_off_are_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path, brokerPluginDisabled="timer_store") as (_, client):
            [row] = (await json_of(client, "GET", "/forecast"))["brokers"]
            assert row["forecast"] is None
            assert row["failure"]
            [row] = (await json_of(client, "GET", "/deliveries"))["brokers"]
            assert (row["minutes"], bool(row["failure"])) == (None, True)

    asyncio.run(main())
