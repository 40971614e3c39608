"""Simulations: a seed repeats a run; cleanup after each, while its warnings are expected."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from delayed_delivery import steps


@pytest.fixture(autouse=True)
def constant_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the number of steps in a turn not depend on the processor."""
    monkeypatch.setattr(steps, "thread_processor_s", lambda: 0.0)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect the objects of killed processes."""
    yield
    gc.collect()
