"""What every simulation leaves is removed while its warnings are expected."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Remove what killed processes have left."""
    yield
    gc.collect()
