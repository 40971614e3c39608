"""Parameter sets and random examples that run in `make test-all` only, always or on most days."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import pytest

SAMPLED_DAYS: Final = 4  # in which all parameter sets of a sampled test run
EXAMPLES: Final = int(os.environ.get("EXAMPLES", "40"))  # of a property; 100 in `make test-all`


def examples(count: int) -> int:
    """Return how many of `count` random examples run: 40 % in `make test`, others each day."""
    return count * EXAMPLES // 100


def extended(*values: object, id: str | None = None) -> Any:
    """Return a parameter set with the mark `extended`."""
    return pytest.param(*values, marks=pytest.mark.extended, id=id)


def one_in(count: int, values: Iterable[object]) -> list[Any]:
    """Return parameter sets of which one in `count` is not extended; for bytes and seeds.

    A tuple is one set of several parameters.
    """
    sets = [each if isinstance(each, tuple) else (each,) for each in values]
    return [extended(*each) if n % count else pytest.param(*each) for n, each in enumerate(sets)]


def mark_unsampled(items: Iterable[pytest.Item], day: int) -> None:
    """Mark the parameter sets of sampled tests that do not run on a day as extended.

    Each test has at least one set on each day; all of them run in `SAMPLED_DAYS` days, or in as
    many days as there are sets.
    """
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("extended"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for sets in tests.values():
        days = min(SAMPLED_DAYS, len(sets))
        for number, item in enumerate(sets):
            if number % days != day % days:
                item.add_marker(pytest.mark.extended)
