"""Evaluation of filters over the records of a queue: results, bounds, foreign records."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.filters import Expression
from duemq.pull import record_filter
from duemq.pull.record_filter import RecordFilter, units_evaluated
from tests.support.fakes import put
from tests.support.stores import open_store


@pytest.fixture
def store(tmp_path: Any) -> Any:
    """Return a store with small log files, so that a queue spans several files."""
    with open_store(
        tmp_path, commitlog_file_bytes=4_096, queue_file_bytes=20_000, message_bytes_max=1_000
    ) as store:
        yield store


def fill(store: Any, values: list[str]) -> Any:
    for value in values:
        put(store, "T", b"x" * 100, properties=f"n\x01{value}\x02".encode())
    return store.units("T", 0, 0, len(values))


def passing(store: Any, units: Any, text: str, **options: Any) -> list[bool]:
    arguments = {"count_max": 1_000, "compiled": True} | options
    found = RecordFilter(
        store, ("T", 0, 0), Expression(text), compiled=arguments["compiled"]
    ).passing(units, arguments["count_max"])
    return list(map(bool, found))


@pytest.mark.parametrize("compiled", [True, False])
def test_records_of_several_files_are_evaluated(store: Any, compiled: bool) -> None:
    units = fill(store, [str(n % 3) for n in range(100)])
    assert len(store.log.files) > 2
    found = passing(store, units, "n = 1", compiled=compiled)
    assert found == [n % 3 == 1 for n in range(100)]


def test_evaluation_stops_soon_after_the_required_matches(store: Any) -> None:
    units = fill(store, ["1"] * 100)
    assert passing(store, units, "n = 1", count_max=1) == [True] * record_filter.UNITS_MIN


@pytest.mark.parametrize("tail", ["", " OR (n = 1) IS NULL"])
def test_undecided_records_are_bounded(store: Any, tail: str) -> None:
    """A record costs 256 steps plus its property bytes, times the characters of the expression."""
    text = "n = 1" + " " * (1_000_000 // 256 - len(tail)) + tail
    units = fill(store, ["٣"] * 100)
    assert len(passing(store, units, text)) == 8
    assert len(passing(store, units, text + " " * 40_000)) == 1


def test_a_unit_that_points_to_another_record_matches(store: Any) -> None:
    """`gather` repairs the unit or reports it."""
    units = fill(store, ["2"] * 4).copy()
    units["phys_offset"][1] = units["phys_offset"][0]
    assert passing(store, units, "n = 1") == [False, True, False, False]
    units["phys_offset"][2] = 1 << 40
    assert passing(store, units, "n = 1") == [False, True, True, False]
    assert passing(store, units, "n = 1", compiled=False) == [False, True, True, False]


def test_expensive_filters_are_evaluated_over_fewer_units() -> None:
    cheap = Expression("n = 1")
    dear = Expression(" OR ".join(f"n{i} = 1" for i in range(1_000)))
    assert units_evaluated(cheap, compiled=True) == 16_384
    assert units_evaluated(cheap, compiled=False) == 800
    assert 32 <= units_evaluated(dear, compiled=True) < 200
    assert units_evaluated(dear, compiled=False) == 32
