"""Text of families with many series: the same samples as prometheus-client's, for less time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from duemq.broker.collectors.native_registry import NamedSeries
from duemq.metrics.series import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    PIECE_SERIES,
    Families,
    SeriesLabels,
    SeriesTable,
    encode,
)
from tests.support.extended import examples
from tests.support.processor_time import costs_s

Parser = Callable[[str], Iterable[Any]]
FORMATS: list[tuple[Callable[[Any], bytes], Parser]] = [
    (generate_latest, text_string_to_metric_families),
    (openmetrics.generate_latest, openmetrics_parser.text_string_to_metric_families),
]
BOUNDS = (1, 10, 1_000)
NAMES = ("topic", "consumer_group")
LAST_LINE = re.compile(rb"^a(_total|_sum|)\{", re.M)


def table(kind: str, rows: list[tuple[str, str]], numbers: list[int]) -> SeriesTable:
    values = numbers[: len(rows)]
    counts = [[number, 0, 1, number // 2] for number in values]
    more: dict[str, Any] = {"bounds": BOUNDS, "counts": counts} if kind == HISTOGRAM else {}
    return SeriesTable("a", "What it is.", kind, SeriesLabels(NAMES, rows), values, **more)


def samples(parse: Parser, text: bytes) -> dict[tuple[str, str, frozenset[tuple[str, str]]], float]:
    return {
        (family.type, sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in parse(text.decode())
        for sample in family.samples
    }


@pytest.mark.sampled
@pytest.mark.parametrize("form", FORMATS, ids=["text", "openmetrics"])
@pytest.mark.parametrize("kind", [GAUGE, COUNTER, HISTOGRAM])
@settings(max_examples=examples(60))
@given(
    rows=st.lists(
        st.tuples(st.text("aB%{},= \\\"\n'é𝄞"), st.text('gG%\\"\n')), max_size=5, unique=True
    ),
    common=st.dictionaries(st.sampled_from(["cluster", "node_id"]), st.text('a%\\"\n')),
    numbers=st.lists(st.integers(0, 1 << 60), min_size=5, max_size=5),
)
def test_the_samples_are_those_of_the_library(
    form: tuple[Callable[[Any], bytes], Parser],
    kind: str,
    rows: list[tuple[str, str]],
    common: dict[str, str],
    numbers: list[int],
) -> None:
    encoder, parse = form
    first, last = GaugeMetricFamily("b", "B.", value=1), GaugeMetricFamily("c", "C.", value=2)
    many = table(kind, rows, numbers)
    many.add_labels(common)
    ours = samples(parse, b"".join(encode([first, many, last], encoder)))
    assert ours == samples(parse, encoder(Families([first, many.as_samples(), last])))
    lines = 0 if not rows else len(rows) * (6 if kind == HISTOGRAM else 1)
    assert len(ours) == lines + 2


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ({"a_bucket", "a_count", "a_sum"}, {"a_bucket", "a_count", "a_sum"}),
        ({"a_count", "b"}, {"a_count"}),
        ({"a"}, set()),
    ],
)
def test_a_restriction_to_names(names: set[str], shown: set[str]) -> None:
    class Registry(Families):
        """Registry of one table."""

    registry: Any = Registry([table(HISTOGRAM, [("t", "g")], [4])])
    text = b"".join(encode(NamedSeries(names, registry).collect(), generate_latest))
    series = samples(text_string_to_metric_families, text)
    assert {name for _, name, _ in series} == shown


def test_a_series_costs_a_fraction_of_an_object() -> None:
    """10,000 topics have 150,000 series: prometheus-client takes 10 us for each of them."""
    rows = [(f"topic-{number:05d}", f"group-{number % 7}") for number in range(5_000)]
    tables = [partial(table, kind, rows, [*range(5_000)]) for kind in (GAUGE, HISTOGRAM)]
    made = [make() for make in tables]
    ours, theirs = costs_s(
        lambda: list(encode(made, generate_latest)),
        lambda: generate_latest(Families([each.as_samples() for each in made])),
    )
    assert ours * 5 < theirs


@pytest.mark.parametrize("kind", [GAUGE, COUNTER, HISTOGRAM])
def test_a_piece_of_text_has_a_limited_number_of_series(kind: str) -> None:
    """Other threads do not run while a piece is joined and encoded."""
    rows = [(f"topic-{number}", "group") for number in range(3 * PIECE_SERIES)]
    family = table(kind, rows, list(range(len(rows))))
    series = [
        piece.count(b"# TYPE") + len(LAST_LINE.findall(piece))
        for piece in encode([family], generate_latest)
    ]
    assert max(series) <= PIECE_SERIES
    assert sum(series) == len(rows) + 1
