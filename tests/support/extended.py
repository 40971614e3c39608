"""Parameter sets that run in `make test-all` only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def extended(*values: object, id: str | None = None) -> Any:
    """Return a parameter set with the mark `extended`."""
    return pytest.param(*values, marks=pytest.mark.extended, id=id)


def one_in(count: int, values: Sequence[object]) -> list[Any]:
    """Return parameter sets of which one in `count` is not extended; for bytes and seeds."""
    return [each if n % count == 0 else extended(each) for n, each in enumerate(values)]
