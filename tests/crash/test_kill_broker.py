"""`kill -9` at random moments: nothing acknowledged is lost, nothing is doubled, nothing early.

--kills N    how often to kill (100; `make soak` uses more)
--seed N     the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from tests.crash.books import PendingCounts, send_until
from tests.crash.left import audit_faults
from tests.crash.victim import Victim, arrivals

DELAYS_MS = (1_000, 2_000, 3_000)
TIMERS_MS = (30, 400, 1_000, 1_700, 4_000, 9_000)  # the last ones roll


async def send_and_kill(victim: Victim, books: PendingCounts) -> None:
    """Send until the broker is killed at a random moment, from a thread of its own."""
    stop = asyncio.Event()
    fuse = threading.Timer(victim.random.uniform(0.02, 0.9), victim.kill)
    fuse.start()
    try:
        await send_until(books, victim.address, stop)
    finally:
        fuse.join()


@dataclass(frozen=True)
class Killed:
    """A run, and what a reader found wrong; behind it, one more kill left messages waiting."""

    victim: Victim
    books: PendingCounts
    faults: list[str]
    where: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, kills: int, seed: int) -> Killed:
    home = tmp_path_factory.mktemp("killed")
    victim = Victim(home, seed)
    books = PendingCounts("CrashT", queues=3, delays_ms=DELAYS_MS, timers_ms=TIMERS_MS)
    for _ in range(kills):
        victim.start()
        asyncio.run(send_and_kill(victim, books))
    faults = books.faults(arrivals(victim, books))
    victim.start()
    asyncio.run(send_and_kill(victim, books))
    return Killed(victim, books, faults, f"seed {seed}, {kills} kills, log {home}/broker.log")


@pytest.mark.crash
def test_kill_at_random_moments(killed: Killed, kills: int) -> None:
    assert killed.faults == [], killed.where
    assert len(killed.books.acknowledged) >= kills, f"{killed.where}: hardly anything was sent"


@pytest.mark.crash
@pytest.mark.spark
def test_an_audit_of_what_the_kills_left(killed: Killed, spark: Any) -> None:
    assert audit_faults(spark, killed.victim.root, killed.books) == [], killed.where
