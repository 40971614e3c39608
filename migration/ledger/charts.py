"""Charts of a history page: inline SVG with tooltips. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Final

WIDTH, HEIGHT = 920, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 26
TICKS_MAX: Final = 5
TIME_STEPS_S: Final = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1_800,
    3_600,
    7_200,
    14_400,
    21_600,
    43_200,
    86_400,
    172_800,
    604_800,
    2_592_000,
)
Point = tuple[int, float | None]
"""Time in ms, and a value; None without a measurement."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Attributes:
        name: Name in the legend.
        filled: Whether the area down to zero is filled.
    """

    name: str
    style: str
    points: Sequence[Point]
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear scale from values to pixels."""

    first: float
    last: float
    start_px: float
    end_px: float

    def px(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.first) / (self.last - self.first)
        return round(self.start_px + share * (self.end_px - self.start_px), 1)


def chart(
    title: str,
    series: Sequence[Series],
    *,
    shown: Callable[[float], str],
    run: tuple[int, int],
    annotations: Sequence[tuple[int, str]] = (),
) -> str:
    """Return a chart of values over time, with its legend.

    Args:
        shown: Formats a value with its unit.
        run: Start and end of the migration in ms, shaded; the chart also shows the time around it.
        annotations: Times in ms with their texts.
    """
    times = [position for line in series for position, _ in line.points]
    if not times:
        return f'<p class="empty">{escape(title)}: nothing was measured.</p>'
    across = Scale(min(times), max(*times, min(times) + 1), LEFT, WIDTH - RIGHT)
    values = [value for line in series for _, value in line.points if value is not None]
    ticks = value_ticks(max(values, default=0))
    up = Scale(0, ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [
        legend(series),
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        _run(across, run),
        *(_value_tick(up, tick, shown) for tick in ticks),
        *(
            _time_tick(across, position, text)
            for position, text in time_ticks(across.first, across.last)
        ),
        *(
            _annotation(across, position, text)
            for position, text in annotations
            if across.first <= position <= across.last
        ),
        *(_line(line, across, up) for line in series),
        *_columns(series, across, shown),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def legend(series: Sequence[Series]) -> str:
    """Return the legend with the name of each series."""
    items = (
        f'<span class="key"><i class="swatch swatch-{style}"></i>{escape(name)}</span>'
        for name, style in [*((line.name, line.style) for line in series), ("the run", "run")]
    )
    return f'<p class="legend">{"".join(items)}</p>'


def value_ticks(largest: float) -> list[float]:
    """Return round values from zero to the first that is at least the largest."""
    step = 1.0
    while largest / step > TICKS_MAX:
        for factor in (2.0, 2.5, 2.0):
            step *= factor
            if largest / step <= TICKS_MAX:
                break
    count = max(int(-(-largest // step)), 1)
    return [step * number for number in range(count + 1)]


def time_ticks(first_ms: float, last_ms: float) -> list[tuple[int, str]]:
    """Return round times with their labels, in UTC."""
    span_s = (last_ms - first_ms) / 1_000
    step_s = next((s for s in TIME_STEPS_S if span_s / s <= 7), TIME_STEPS_S[-1])
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86_400 else "%d %b"
    at_s = -(-int(first_ms) // (step_s * 1_000)) * step_s
    ticks = []
    while at_s * 1_000 <= last_ms:
        ticks.append((at_s * 1_000, f"{datetime.fromtimestamp(at_s, UTC):{form}}"))
        at_s += step_s
    return ticks


def format_time(at_ms: int) -> str:
    """Return a time as text, with seconds."""
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"


def _run(across: Scale, run: tuple[int, int]) -> str:
    first = across.px(min(max(run[0], across.first), across.last))
    last = across.px(min(max(run[1], across.first), across.last))
    height = HEIGHT - TOP - BOTTOM
    width = round(last - first, 1)
    return f'<rect class="run" x="{first}" y="{TOP}" width="{width}" height="{height}"/>'


def _value_tick(up: Scale, value: float, shown: Callable[[float], str]) -> str:
    y = up.px(value)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">'
        f"{escape(shown(value))}</text>"
    )


def _time_tick(across: Scale, at_ms: int, text: str) -> str:
    x, base = across.px(at_ms), HEIGHT - BOTTOM
    return (
        f'<line class="grid" x1="{x}" x2="{x}" y1="{base}" y2="{base + 4}"/>'
        f'<text class="tick" x="{x}" y="{base + 18}" text-anchor="middle">{escape(text)}</text>'
    )


def _annotation(across: Scale, at_ms: int, text: str) -> str:
    x = across.px(at_ms)
    return (
        f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
        f"<title>{escape(format_time(at_ms))}  {escape(text)}</title></line>"
    )


def _line(line: Series, across: Scale, up: Scale) -> str:
    parts = []
    for stretch in stretches(line.points):
        points = [(across.px(x), up.px(y)) for x, y in stretch]
        path = " L".join(f"{x} {y}" for x, y in points)
        if len(points) == 1:
            parts.append(
                f'<circle class="dot-{line.style}" cx="{points[0][0]}" cy="{points[0][1]}" r="2"/>'
            )
            continue
        if line.filled:
            base = up.px(0)
            area = f"M{points[0][0]} {base} L{path} L{points[-1][0]} {base} Z"
            parts.append(f'<path class="area-{line.style}" d="{area}"/>')
        parts.append(f'<path class="line-{line.style}" d="M{path}"/>')
    return "\n".join(parts)


def stretches(points: Sequence[Point]) -> list[list[tuple[int, float]]]:
    """Return runs of consecutive points with a measurement."""
    found: list[list[tuple[int, float]]] = [[]]
    for position, value in points:
        if value is not None:
            found[-1].append((position, value))
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _columns(series: Sequence[Series], across: Scale, shown: Callable[[float], str]) -> list[str]:
    """Return an invisible column for each time, whose tooltip shows the values."""
    values_at: dict[int, list[str]] = {}
    for line in series:
        for position, value in line.points:
            text = "nothing" if value is None else shown(value)
            values_at.setdefault(position, []).append(f"{line.name}: {text}")
    times = sorted(values_at)
    edges = [across.px((a + b) / 2) for a, b in pairwise(times)]
    starts, ends = [float(LEFT), *edges], [*edges, float(WIDTH - RIGHT)]
    return [
        f'<rect class="hit" x="{start}" y="{TOP}" width="{round(end - start, 1)}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(format_time(position))}\n'
        f"{escape(chr(10).join(values_at[position]))}</title></rect>"
        for position, start, end in zip(times, starts, ends, strict=True)
    ]
