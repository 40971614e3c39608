"""Parameter sets that run in `make test-all` only."""

from __future__ import annotations

from typing import Any

import pytest


def extended(*values: object, id: str | None = None) -> Any:
    """Return a parameter set with the mark `extended`."""
    return pytest.param(*values, marks=pytest.mark.extended, id=id)
