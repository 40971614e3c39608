"""SVG charts of the report, bounded in size for any input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

POINTS_MAX: Final = 240
SERIES_MAX: Final = 8
DOTS_MAX: Final = 40  # maximum points of a line that are drawn as dots
COLOURS: Final = (
    "#1f6f8b",
    "#c0504d",
    "#6a8f3c",
    "#8064a2",
    "#d98c21",
    "#3b6ea8",
    "#a0527d",
    "#5b5b5b",
)
WIDTH, HEIGHT = 960, 240
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 12, 26
MS_MAX: Final = 253_402_300_799_999  # end of the range of datetime
TICKS: Final = 4
DAY_MS: Final = 86_400_000
Points = Mapping[int, float]


def time_text(ms: int | None) -> str:
    """Return a time as text, with milliseconds; a time out of range as a number of ms."""
    if ms is None:
        return ""
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    when = datetime.fromtimestamp(ms // 1_000, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{ms % 1_000:03d}"


def lines(series: Mapping[str, Points], *, unit: str, limit: float | None = None) -> str:
    """Return a chart with a line per series; if there are too many points, the highest are drawn.

    Args:
        series: Name to values by time in ms; the first SERIES_MAX are drawn.
        unit: Unit of the values.
        limit: Value of a dashed line.
    """
    shown = {name: points for name, points in list(series.items())[:SERIES_MAX] if points}
    if not shown:
        return ""
    times = [position for points in shown.values() for position in points]
    top = max([limit or 0.0, *(v for points in shown.values() for v in points.values())])
    frame = _Frame(min(times), max(times), _rounded(top), unit)
    drawn = [frame.axes()]
    if limit is not None:
        drawn.append(frame.level(limit))
    for colour, points in zip(COLOURS, shown.values(), strict=False):
        drawn.append(frame.line(_thinned(points), colour))
    return _svg("".join(drawn)) + _legend(list(shown), limit, unit)


def bars(values: Points, *, unit: str, piece_ms: int = 1, limit: float | None = None) -> str:
    """Return a chart with a bar per interval; if there are too many, the highest are drawn.

    Args:
        values: Value by start of the interval in ms.
        piece_ms: Length of an interval in ms: the width of its bar.
    """
    if not values:
        return ""
    thin = _thinned(values)
    drawn_ms = piece_ms * -(-len(values) // POINTS_MAX)
    top = max(limit or 0.0, *thin.values())
    frame = _Frame(min(values), max(values) + drawn_ms, _rounded(top), unit)
    drawn = [frame.axes(), frame.bars(thin, drawn_ms)]
    if limit is not None:
        drawn.append(frame.level(limit))
    return _svg("".join(drawn))


class _Frame:
    """Positions of values on the chart."""

    def __init__(self, first: int, last: int, top: float, unit: str) -> None:
        self.first, self.last, self.top, self.unit = first, last, top, unit

    def x(self, position: float) -> float:
        inner = WIDTH - LEFT - RIGHT
        return LEFT + inner * (position - self.first) / max(self.last - self.first, 1)

    def y(self, value: float) -> float:
        inner = HEIGHT - TOP - BOTTOM
        return TOP + inner * (1 - min(max(value, 0.0), self.top) / self.top)

    def axes(self) -> str:
        made = []
        for part in range(TICKS + 1):
            value = self.top * part / TICKS
            y = self.y(value)
            made.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            text = f"{value:,.0f}" if self.top >= TICKS else f"{value:,.2f}"
            made.append(
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" class="tick" text-anchor="end">{text}</text>'
            )
        made.append(f'<text x="{LEFT}" y="{TOP - 2}" class="unit">{escape(self.unit)}</text>')
        for part, side in ((0, "start"), (1, "middle"), (2, "end")):
            position = self.first + (self.last - self.first) * part // 2
            text = _short(position, self.last - self.first)
            x = self.x(position) if self.last > self.first else LEFT
            made.append(
                f'<text x="{x:.1f}" y="{HEIGHT - 6}" class="tick" text-anchor="{side}">'
                f"{text}</text>"
            )
            if self.last == self.first:
                break
        return "".join(made)

    def line(self, points: Points, colour: str) -> str:
        placed = [
            (f"{self.x(position):.1f}", f"{self.y(points[position]):.1f}")
            for position in sorted(points)
        ]
        path = "L".join(f"{x} {y}" for x, y in placed)
        drawn = f'<path class="line" stroke="{colour}" d="M{path}"/>' if len(placed) > 1 else ""
        if len(placed) <= DOTS_MAX:
            drawn += "".join(
                f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in placed
            )
        return drawn

    def bars(self, points: Points, piece_ms: int) -> str:
        made = []
        for time_ms, value in points.items():
            x, y = self.x(time_ms), self.y(value)
            width = max((self.x(time_ms + piece_ms) - x) * 0.9, 1.0)
            made.append(
                f'<rect class="column" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}"/>'
            )
        return "".join(made)

    def level(self, value: float) -> str:
        return f'<path class="limit" d="M{LEFT} {self.y(value):.1f}H{WIDTH - RIGHT}"/>'


def _svg(inner: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{inner}</svg>'


def _legend(names: Sequence[str], limit: float | None, unit: str) -> str:
    items = [
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(names, COLOURS, strict=False)
    ]
    if limit is not None:
        items.append(f'<span class="key">- - {limit:,.0f} {escape(unit)}</span>')
    return f'<p class="legend">{"".join(items)}</p>'


def _thinned(points: Points) -> dict[int, float]:
    """Return at most `POINTS_MAX` points, the highest of neighbours."""
    times = sorted(points)
    step = -(-len(times) // POINTS_MAX)
    groups = [times[index : index + step] for index in range(0, len(times), step)]
    return {group[0]: max(points[index] for index in group) for group in groups}


def _rounded(top: float) -> float:
    """Return the next round number; 1 for zero."""
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= top)


def _short(ms: int, span_ms: int) -> str:
    text = time_text(ms)
    if text.endswith("ms"):
        return text
    return text[:10] if span_ms > 20 * DAY_MS else text[5:16] if span_ms > DAY_MS else text[5:19]
