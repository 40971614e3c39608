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


@pytest.fixture
def lasting_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed logins count for an hour: on a busy machine, a few requests take seconds."""
    monkeypatch.setattr("duemq.http.admission.FAILURE_WINDOW_S", 3_600.0)
