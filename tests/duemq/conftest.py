from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


@pytest.fixture
def run() -> Callable[..., Any]:
    """Run a coroutine in an event loop of its own."""

    def run_(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)

    return run_
