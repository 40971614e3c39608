"""Sampled tests: their parameter sets on each day."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.extended import SAMPLED_DAYS, mark_unsampled


class Item:
    """A test of pytest with its marks."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self._marks = nodeid, list(marks)

    def get_closest_marker(self, name: str) -> bool:
        return name in self._marks

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self._marks.append(mark.name)


def runs(day: int, *items: Item) -> list[str]:
    """Return the tests of `make test` on a day."""
    mark_unsampled(cast(Any, items), day)
    return [item.nodeid for item in items if not item.get_closest_marker("extended")]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_all_sets_run_within_some_days(count: int) -> None:
    sets = [f"test_x.py::test[{number}]" for number in range(count)]
    days = [runs(day, *[Item(each, "sampled") for each in sets]) for day in range(SAMPLED_DAYS)]
    assert sorted(set().union(*days)) == sorted(sets)
    assert all(1 <= len(day) <= -(-count // min(count, SAMPLED_DAYS)) for day in days)


def test_other_tests_are_not_sampled() -> None:
    others = ["test_x.py::test_a[1]", "test_x.py::test_a[2]"]
    assert runs(0, *map(Item, others)) == others


def test_an_extended_set_does_not_count() -> None:
    sets = [
        Item("test_x.py::test[1]", "sampled", "extended"),
        Item("test_x.py::test[2]", "sampled"),
    ]
    assert [runs(day, *sets) for day in range(2)] == [["test_x.py::test[2]"]] * 2
