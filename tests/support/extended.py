"""Parameter sets that run in `make test-all` only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def extended(*values: object, id: str | None = None) -> Any:
    """Return a parameter set with the mark `extended`."""
    return pytest.param(*values, marks=pytest.mark.extended, id=id)


def one_in(count: int, values: Iterable[object]) -> list[Any]:
    """Return parameter sets of which one in `count` is not extended; for bytes and seeds.

    A tuple is one set of several parameters.
    """
    sets = [each if isinstance(each, tuple) else (each,) for each in values]
    return [extended(*each) if n % count else pytest.param(*each) for n, each in enumerate(sets)]
