"""Charts: few labels, bounded size, and valid SVG for any values."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.charts import (
    COLOURS,
    LEFT,
    POINTS_MAX,
    RIGHT,
    TIME_TICKS_MAX,
    VALUE_TICKS_MAX,
    WIDTH,
    Point,
    Scale,
    Series,
    chart,
    decades,
    differ_by_orders,
    stretches,
    time_text,
    time_ticks,
    value_ticks,
)

MS = "{:,.0f} ms".format


@pytest.mark.parametrize(
    "points", [{}, {5: 0.0}, {0: 1.0, 1: 1e12}, {-5: -3.0, 10**17: 2.0}], ids=len
)
@pytest.mark.parametrize("bar_ms", [0, 7])
def test_any_values_can_be_drawn(points: dict[int, float], bar_ms: int) -> None:
    series = [Series("a<b", list(points.items()), bar_ms=bar_ms)]
    page = chart("<u>", series, shown=MS, limit=3.0, annotations=[(0, "<i>")])
    root = ElementTree.fromstring(f"<div>{page}</div>")
    assert (root.find("{http://www.w3.org/2000/svg}svg") is not None) == bool(points)
    assert "nan" not in page
    assert not re.search("<u>|<i>|a<b", page)


@pytest.mark.parametrize("ms", [None, -5, 10**18 - 1, 0])
def test_any_time_can_be_written(ms: int | None) -> None:
    assert isinstance(time_text(ms), str)


@pytest.mark.finding("B10")
@pytest.mark.parametrize("count", [1, 3, 60])
def test_a_bar_is_as_wide_as_its_piece_lasts(count: int) -> None:
    """A piece of one minute in an hour has a sixtieth of the width."""
    bars = Series("u", [(n * 60_000, 1.0) for n in range(count)], bar_ms=60_000)
    page = chart("title", [bars], shown=MS)
    inner = WIDTH - LEFT - RIGHT
    widths = [float(text) for text in re.findall(r'class="column"[^>]* width="([\d.]+)"', page)]
    assert widths == pytest.approx([0.9 * inner / count] * count, abs=0.1)


@pytest.mark.finding("B29")
@pytest.mark.parametrize(("count", "dots"), [(1, 1), (12, 12), (POINTS_MAX, 0)])
def test_sparse_points_are_dots(count: int, dots: int) -> None:
    line = Series("a", [(n, float(n % 3)) for n in range(count)])
    assert chart("title", [line], shown=MS).count("<circle") == dots


@pytest.mark.parametrize("bar_ms", [0, 10])
def test_the_highest_of_neighbours_are_drawn(bar_ms: int) -> None:
    points: list[Point] = [(10 * n, 1.0) for n in range(10 * POINTS_MAX)]
    points[1_001] = (10_010, 77.0)
    page = chart("title", [Series("a", points, bar_ms=bar_ms)], shown=MS)
    assert page.count('class="hit"') == POINTS_MAX
    assert page.count("a: 77 ms") == 1


def test_the_legend_names_series_band_and_limit() -> None:
    series = [Series(f"s{n}", [(n, 1.0)], colour) for n, colour in enumerate(COLOURS)]
    page = chart("title", series, shown=MS, band=("the run", 0, 1), limit=2.0)
    keys = re.findall(r"</(?:i|svg)>([^<]+)</span>|>(- - [^<]+)</span>", page)
    assert ["".join(key) for key in keys] == [*(s.name for s in series), "the run", "- - 2 ms"]


@given(st.floats(0, 1e12))
def test_value_ticks_are_few_and_reach_the_top(largest: float) -> None:
    ticks = value_ticks(largest)
    assert 2 <= len(ticks) <= VALUE_TICKS_MAX + 1
    assert ticks[0] == 0
    assert largest <= ticks[-1] * (1 + 1e-9)
    assert ticks[-1] <= max(2.5 * largest, 1) or len(ticks) == 2


@given(st.integers(-(10**17), 10**17), st.integers(1, 10**17))
def test_time_ticks_are_few_and_within(first_ms: int, span_ms: int) -> None:
    ticks = time_ticks(first_ms, first_ms + span_ms)
    assert 1 <= len(ticks) <= TIME_TICKS_MAX + 1
    assert all(first_ms <= at <= first_ms + span_ms for at, _ in ticks)


POINTS = st.lists(st.tuples(st.integers(0, 99), st.none() | st.floats(0, 9)), max_size=20)


@given(POINTS)
def test_a_line_has_gaps_without_measurements(points: list[Point]) -> None:
    found = stretches(points)
    assert [p for stretch in found for p in stretch] == [p for p in points if p[1] is not None]
    gaps = "".join("x" if value is not None else " " for _, value in points).split()
    assert [len(stretch) for stretch in found] == [len(gap) for gap in gaps]


def test_columns_lead_to_the_addresses_of_their_times() -> None:
    series = [Series("n", [(0, 1.0), (1_000, 2.0)], bar_ms=1_000)]
    text = chart("t", series, shown=str, link=lambda ms: f'/?at={ms}&"' if ms else "")
    assert text.count("<a ") == 1
    assert 'href="/?at=1000&amp;&quot;" tabindex="-1" aria-label="1970-01-01 00:00:01"' in text
    assert 'role="group"' in text
    assert 'role="img"' in chart("t", series, shown=str)


@pytest.mark.parametrize(
    ("values", "is_log"),
    [([], False), ([0, 0], False), ([1, 99], False), ([1, 100], True), ([0, 0.01, 5], True)],
)
def test_values_that_differ_by_orders_need_a_log_scale(values: list[float], is_log: bool) -> None:
    assert differ_by_orders(values) == is_log


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1, 100], [0.1, 1, 10, 100]),
        ([0, 2, 999], [1, 10, 100, 1_000]),
        ([0.05, 40], [0.01, 0.1, 1, 10, 100]),
        ([3, 2e9], [1, 100, 10_000, 1e6, 1e8, 1e10]),
    ],
)
def test_ticks_of_a_log_scale_are_powers_of_ten(values: list[float], ticks: list[float]) -> None:
    assert decades(values) == pytest.approx(ticks)


def test_a_log_scale_keeps_factors_and_order() -> None:
    scale = Scale(1, 1_000, 100, 10, is_log=True)
    assert [scale.px(value) for value in (0, 1, 10, 100, 1_000, 5_000)] == [
        100,
        100,
        70,
        40,
        10,
        10,
    ]
    points = [(0, 1), (1_000, 1_000)]
    text = chart("Rate", [Series("a", points)], shown=str, may_be_log=True)
    assert "log scale" in text
    assert "log scale" not in chart("Rate", [Series("a", points)], shown=str)
