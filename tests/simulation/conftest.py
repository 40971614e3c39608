"""Cleanup after each simulation, while its warnings are expected."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the objects of killed processes."""
    yield
    gc.collect()
