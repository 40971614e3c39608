"""Tasks that the level service and the timer service have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from duemq_common.clock import Clock
from message_store.kernels import registry

log = logging.getLogger(__name__)
PRELOAD_AFTER_MS = 100  # pause after the start, until the broker serves


def report_failure(service: str, error: Exception, on_failure: Callable[[str], None]) -> None:
    """Log and report the failure of a service's task, so that the broker stops cleanly."""
    log.error("the %s service cannot continue", service, exc_info=error)
    on_failure(f"{type(error).__name__}: {error}")


async def preload(group: str, clock: Clock, stop: asyncio.Event) -> None:
    """Load a group of kernels before a message is due, but not while the broker starts."""
    await clock.wait(stop, until_ms=clock.now_ms() + PRELOAD_AFTER_MS)
    if not stop.is_set():
        await asyncio.to_thread(registry.load, group)
