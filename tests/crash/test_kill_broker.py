"""`kill -9` at random moments: nothing acknowledged is lost, nothing is doubled, nothing early.

--kills N    how often to kill (100; `make soak` uses more)
--seed N     the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.crash.books import Books, send_until
from tests.crash.victim import Victim, arrivals

DELAYS_MS = (1_000, 2_000, 3_000)
TIMERS_MS = (30, 400, 1_000, 1_700, 4_000, 9_000)  # the last ones roll


async def send_and_kill(victim: Victim, books: Books) -> None:
    """Send until the broker is killed at a random moment, from a thread of its own."""
    stop = asyncio.Event()
    fuse = threading.Timer(victim.random.uniform(0.02, 0.9), victim.kill)
    fuse.start()
    try:
        await send_until(books, victim.address, stop)
    finally:
        fuse.join()


@pytest.mark.crash
def test_kill_at_random_moments(tmp_path: Path, kills: int, seed: int) -> None:
    victim = Victim(tmp_path, seed)
    books = Books("CrashT", queues=3, delays_ms=DELAYS_MS, timers_ms=TIMERS_MS)
    for _ in range(kills):
        victim.start()
        asyncio.run(send_and_kill(victim, books))
    arrived = arrivals(victim, books)
    assert books.faults(arrived) == [], f"seed {seed}, {kills} kills, log {tmp_path}/broker.log"
    assert len(books.acknowledged) >= kills, f"seed {seed}: hardly anything was sent"
