"""Charts over time: inline SVG without scripts and `style` attributes, bounded in size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

WIDTH, HEIGHT = 940, 240
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 14, 26
TICK_PX: Final = 80  # width of a label of the time
POINTS_MAX: Final = 240  # per series
DOTS_MAX: Final = 40  # maximum points of a line that are also drawn as dots
VALUE_TICKS_MAX, TIME_TICKS_MAX = 5, 7
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
DAY_S: Final = 86_400
ORDERS_MIN: Final = 100.0  # factor between values that need a log scale
MS_MAX: Final = 253_402_300_799_999  # end of the range of datetime
COLOURS: Final = (
    "var(--blue)",
    "var(--amber)",
    "#6a8f3c",
    "#8064a2",
    "#c0504d",
    "#1f6f8b",
    "#a0527d",
    "#5b5b5b",
)
Point = tuple[int, float | None]
"""Time in ms, and a value; None without a measurement."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart, or its bars.

    Attributes:
        name: Name in the legend.
        points: Points, ascending in time.
        colour: CSS colour.
        filled: Whether the area of a line down to zero is filled.
        bar_ms: Duration that a bar covers, in ms; 0: a line.
    """

    name: str
    points: Sequence[Point]
    colour: str = COLOURS[0]
    filled: bool = False
    bar_ms: int = 0


@dataclass(frozen=True, slots=True)
class Scale:
    """Scale from values to pixels; a value outside has the pixel of the nearer end.

    Attributes:
        is_log: Whether equal factors, not equal differences, have equal lengths.
    """

    first: float
    last: float
    start_px: float
    end_px: float
    is_log: bool = False

    def px(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.is_log:
            value = max(value, self.first)
            share = log10(value / self.first) / log10(self.last / self.first)
        else:
            share = (value - self.first) / (self.last - self.first)
        share = min(max(share, 0.0), 1.0)
        return round(self.start_px + share * (self.end_px - self.start_px), 1)


def chart(
    title: str,
    series: Sequence[Series],
    *,
    shown: Callable[[float], str],
    band: tuple[str, int, int] | None = None,
    annotations: Sequence[tuple[int, str]] = (),
    limit: float | None = None,
    step_min: float = 1.0,
    link: Callable[[int], str] | None = None,
    may_be_log: bool = False,
) -> str:
    """Return a chart with its legend; of too many points, the highest of neighbours are drawn.

    Args:
        shown: Formats a value with its unit.
        band: Name, start and end in ms of a shaded time.
        annotations: Times in ms with their texts.
        limit: Value of a dashed line.
        step_min: Minimum difference of the values with a label.
        link: Returns the address to which a time in ms leads; empty: it leads nowhere.
        may_be_log: Whether the scale is logarithmic if values differ by orders of magnitude.
    """
    series = [_thinned(each) for each in series]
    ends = [at_ms + each.bar_ms for each in series for at_ms, _ in each.points]
    if not ends:
        return f'<p class="empty">{escape(title)}: nothing was measured.</p>'
    first = min(at_ms for each in series for at_ms, _ in each.points)
    across = Scale(first, max(*ends, first + 1), LEFT, WIDTH - RIGHT)
    values = [value for each in series for _, value in each.points if value is not None]
    values += [] if limit is None else [limit]
    is_log = may_be_log and differ_by_orders(values)
    ticks = decades(values) if is_log else value_ticks(max(values, default=0), step_min)
    up = Scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP, is_log)
    role = "group" if link else "img"  # an image has no links
    parts = [
        _legend(series, band, "" if limit is None else shown(limit), is_log=is_log),
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="{role}" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">',
        "" if band is None else _band(across, band[1], band[2]),
        *(_value_tick(up, tick, shown) for tick in ticks),
        *(_time_tick(across, at_ms, text) for at_ms, text in time_ticks(across.first, across.last)),
        *(
            _annotation(across, at_ms, text)
            for at_ms, text in annotations
            if across.first <= at_ms <= across.last
        ),
        *(_bars(each, across, up) if each.bar_ms else _line(each, across, up) for each in series),
        "" if limit is None else _limit(up, limit),
        *_columns(series, across, shown, link),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def time_text(ms: int | None) -> str:
    """Return a time as text, with milliseconds; a time out of range as a number of ms."""
    if ms is None:
        return ""
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    return f"{datetime.fromtimestamp(ms // 1_000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1_000:03d}"


def _thinned(series: Series) -> Series:
    """Return a series with at most `POINTS_MAX` points, the highest of neighbours."""
    points, size = series.points, -(-len(series.points) // POINTS_MAX)
    if size <= 1:
        return series
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    highest = [
        (group[0][0], max((value for _, value in group if value is not None), default=None))
        for group in groups
    ]
    bar_ms = series.bar_ms * size
    return Series(series.name, highest, series.colour, series.filled, bar_ms)


def _legend(
    series: Sequence[Series], band: tuple[str, int, int] | None, limit: str, *, is_log: bool
) -> str:
    items = [
        f'<span class="key">{_swatch(each.colour)}{escape(each.name)}</span>' for each in series
    ]
    if band is not None:
        items.append(f'<span class="key"><i class="band"></i>{escape(band[0])}</span>')
    if limit:
        items.append(f'<span class="key">- - {escape(limit)}</span>')
    if is_log:
        items.append("<span>log scale</span>")
    return f'<p class="legend">{"".join(items)}</p>'


def _swatch(colour: str) -> str:
    return (
        '<svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">'
        f'<rect width="12" height="12" rx="2" fill="{colour}"/></svg>'
    )


def value_ticks(largest: float, step_min: float = 1.0) -> list[float]:
    """Return round values from zero to the first that is at least the largest."""
    step = step_min
    while largest / step > VALUE_TICKS_MAX:
        for factor in (2.0, 2.5, 2.0):
            step *= factor
            if largest / step <= VALUE_TICKS_MAX:
                break
    count = max(int(-(-largest // step)), 1)
    return [step * number for number in range(count + 1)]


def differ_by_orders(values: Sequence[float]) -> bool:
    """Return whether the smallest value above zero is too small for a linear scale."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) / min(positive) >= ORDERS_MIN


def decades(values: Sequence[float]) -> list[float]:
    """Return powers of ten from below the smallest value above zero to above the largest."""
    positive = [value for value in values if value > 0]
    first, last = floor(log10(min(positive))), ceil(log10(max(positive)))
    if first == log10(min(positive)):  # zero has the pixel of the first tick
        first -= 1
    step = max(-(-(last - first) // VALUE_TICKS_MAX), 1)
    last = first + -(-(last - first) // step) * step
    return [10.0**exponent for exponent in range(first, last + 1, step)]


def count_bar(count: int, largest: int) -> str:
    """Return a bar for a count, on a log scale: a count above zero is never invisible."""
    width = 100 * log10(1 + count) / log10(1 + largest) if largest else 0
    return (
        '<svg class="share" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{width:.1f}" height="6" fill="{COLOURS[0]}"/></svg>'
    )


def time_ticks(first_ms: float, last_ms: float) -> list[tuple[int, str]]:
    """Return round times with their labels, in UTC; the first time if there is no round one."""
    span_s = (last_ms - first_ms) / 1_000
    longest_s = TIME_STEPS_S[-1] * int(span_s / (TIME_STEPS_S[-1] * TIME_TICKS_MAX) + 1)
    step_s = next((s for s in TIME_STEPS_S if span_s / s <= TIME_TICKS_MAX), longest_s)
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if span_s < DAY_S else "%d %b %H:%M"
    form = form if step_s < DAY_S else "%d %b" if step_s <= TIME_STEPS_S[-1] else "%Y-%m-%d"
    at_s = -(-int(first_ms) // (step_s * 1_000)) * step_s
    ticks = []
    while at_s * 1_000 <= last_ms:
        ticks.append((at_s * 1_000, _time_label(at_s * 1_000, form)))
        at_s += step_s
    return ticks or [(int(first_ms), _time_label(int(first_ms), form))]


def _time_label(ms: int, form: str) -> str:
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime(form)


def _band(across: Scale, first_ms: int, end_ms: int) -> str:
    first, end = across.px(first_ms), across.px(end_ms)
    height, width = HEIGHT - TOP - BOTTOM, round(end - first, 1)
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
    anchor = "end" if x > WIDTH - TICK_PX / 2 else "middle"
    return (
        f'<line class="grid" x1="{x}" x2="{x}" y1="{base}" y2="{base + 4}"/>'
        f'<text class="tick" x="{x}" y="{base + 18}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _annotation(across: Scale, at_ms: int, text: str) -> str:
    x = across.px(at_ms)
    return (
        f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
        f"<title>{time_text(at_ms)}  {escape(text)}</title></line>"
    )


def _line(series: Series, across: Scale, up: Scale) -> str:
    parts = []
    for stretch in stretches(series.points):
        pixels = [(across.px(x), up.px(y)) for x, y in stretch]
        path = " L".join(f"{x} {y}" for x, y in pixels)
        if len(pixels) == 1 or len(series.points) <= DOTS_MAX:
            parts += [
                f'<circle cx="{x}" cy="{y}" r="2.5" fill="{series.colour}"/>' for x, y in pixels
            ]
        if len(pixels) == 1:
            continue
        if series.filled:
            base = up.px(0)
            area = f"M{pixels[0][0]} {base} L{path} L{pixels[-1][0]} {base} Z"
            parts.append(f'<path class="area" fill="{series.colour}" d="{area}"/>')
        parts.append(f'<path class="line" stroke="{series.colour}" d="M{path}"/>')
    return "\n".join(parts)


def _bars(series: Series, across: Scale, up: Scale) -> str:
    base, parts = HEIGHT - BOTTOM, []
    for at_ms, value in series.points:
        x, y = across.px(at_ms), up.px(value or 0)
        width = max((across.px(at_ms + series.bar_ms) - x) * 0.9, 1.0)
        parts.append(
            f'<rect class="column" fill="{series.colour}" x="{x}" y="{y}" '
            f'width="{width:.1f}" height="{base - y:.1f}"/>'
        )
    return "\n".join(parts)


def _limit(up: Scale, value: float) -> str:
    return f'<path class="limit" d="M{LEFT} {up.px(value)}H{WIDTH - RIGHT}"/>'


def stretches(points: Sequence[Point]) -> list[list[tuple[int, float]]]:
    """Return runs of consecutive points with a measurement."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at_ms, value in points:
        if value is not None:
            runs[-1].append((at_ms, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _columns(
    series: Sequence[Series],
    across: Scale,
    shown: Callable[[float], str],
    link: Callable[[int], str] | None,
) -> list[str]:
    """Return an invisible column for each time, whose tooltip shows the values.

    A column with a link is not in the order of the Tab key, because there may be hundreds of them.

    Returns:
        No column if the series have more than `POINTS_MAX` different times.
    """
    values_at: dict[int, list[str]] = {}
    for each in series:
        for at_ms, value in each.points:
            text = "nothing" if value is None else shown(value)
            values_at.setdefault(at_ms, []).append(f"{each.name}: {text}")
    times = sorted(values_at) if len(values_at) <= POINTS_MAX else []
    edges = [across.px((a + b) / 2) for a, b in pairwise(times)]
    starts, ends = [float(LEFT), *edges], [*edges, float(WIDTH - RIGHT)]
    columns = []
    for at_ms, start, end in zip(times, starts, ends, strict=False):
        time = time_text(at_ms)[:19]
        column = (
            f'<rect class="hit" x="{start}" y="{TOP}" width="{round(end - start, 1)}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{time}\n'
            f"{escape(chr(10).join(values_at[at_ms]))}</title></rect>"
        )
        target = link(at_ms) if link else ""
        if target:
            column = f'<a href="{escape(target)}" tabindex="-1" aria-label="{time}">{column}</a>'
        columns.append(column)
    return columns
