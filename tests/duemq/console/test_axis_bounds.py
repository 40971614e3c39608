"""The time axis takes a bounded time of brokers with many timers, and says what is not exact."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.console.catalogue import translator
from duemq.console.pages import axis
from duemq.console.pages.axis import AxisData, axis_charts, forecast_of, window_of


class EndlessForecast:
    """Session of a broker whose forecast has no end."""

    def __init__(self) -> None:
        self.admin, self.positions = self, list[object]()

    async def view(self, address: str, name: str, **fields: Any) -> dict[str, Any]:
        self.positions.append(fields.get("pos"))
        return {"counts": [1] * fields["count"], "pos": len(self.positions)}


def test_a_forecast_ends_after_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = EndlessForecast()
    window = window_of("1h", 0)
    monkeypatch.setattr(axis, "FORECAST_S", 0.0)
    counts, is_exact = asyncio.run(forecast_of(session, "address", window))
    assert (counts, is_exact) == ([1] * window.bins, False)
    assert session.positions == [None]


def test_a_forecast_that_is_not_exact_has_a_note() -> None:
    window, text = window_of("1h", 0), translator("en")
    notes = [
        axis_charts(AxisData([], [], [(0, 1)], [], rough), window, 0, text, root="")[0].note
        for rough in ([], ["broker-a"])
    ]
    assert notes[0] == ""
    assert "broker-a" in notes[1]
