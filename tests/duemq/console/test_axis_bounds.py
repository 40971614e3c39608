"""The time axis says what is not exact."""

from __future__ import annotations

from duemq.console.catalogue import translator
from duemq.console.pages.axis import AxisData, axis_charts, window_of


def test_a_forecast_that_is_not_exact_has_a_note() -> None:
    window, text = window_of("1h", 0), translator("en")
    notes = [
        axis_charts(AxisData([], [], [(0, 1)], [], rough), window, 0, text, root="")[0].note
        for rough in ([], ["broker-a"])
    ]
    assert notes[0] == ""
    assert "broker-a" in notes[1]
