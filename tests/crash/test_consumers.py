"""Kills and power cuts under live consumers: sent, stored, received and committed add up.

--consumer-kills N   how often to kill (20; `make soak` uses more)
--power-cuts N       how often to cut the power (10)
--seed N             the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.crash.books import PendingCounts, number_of, read_all, send_until
from tests.crash.consumers import Given, consume_until
from tests.crash.victim import Victim
from tests.crash.volatile import VolatileDisk

DELAYS_MS = (1_000, 2_000, 3_000)
TIMERS_MS = (30, 100, 400, 1_700)
DRAIN_S = 60.0
KEYS = {"flushConsumerOffsetInterval": "200", "flushIntervalConsumeQueue": "100"}


async def work_and_die(victim: Victim, books: PendingCounts, groups: list[Given]) -> None:
    """Send and consume until the broker is killed at a random moment."""
    stop = asyncio.Event()
    fuse = threading.Timer(victim.random.uniform(0.1, 1.2), victim.kill)
    fuse.start()
    try:
        work = [consume_until(one, books, victim.address, victim.random, stop) for one in groups]
        await asyncio.gather(send_until(books, victim.address, stop), *work)
    finally:
        fuse.join()


async def drain(
    victim: Victim, books: PendingCounts, groups: list[Given]
) -> dict[tuple[int, int], int]:
    """Consume what is left; return what the topic holds: number by queue and queue offset."""
    stop = asyncio.Event()
    consuming = [
        asyncio.create_task(consume_until(one, books, victim.address, victim.random, stop))
        for one in groups
    ]
    for _ in range(int(DRAIN_S / 0.1)):
        if all(one.has_all(books) for one in groups):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(max(DELAYS_MS) / 1_000)  # what was not acknowledged may come, too
    stop.set()
    await asyncio.gather(*consuming)
    records = await read_all(books, victim.address)
    return {(record.queue_id, record.queue_offset): number_of(record) for record in records}


def run(victim: Victim, deaths: int, cut: VolatileDisk | None) -> list[str]:
    """Let the broker die over and over; return what does not add up in the end."""
    books = PendingCounts("CrashC", queues=3, delays_ms=DELAYS_MS, timers_ms=TIMERS_MS)
    groups = [Given("steady", restarts=False), Given("restarting", restarts=True)]
    for _ in range(deaths):
        victim.start()
        asyncio.run(work_and_die(victim, books, groups))
        if cut is not None:
            cut.cut(victim.random)
    victim.start()
    try:
        stored = asyncio.run(drain(victim, books, groups))
    finally:
        victim.kill()
    counts = f"{books.attempted} sent, {len(books.acknowledged)} acknowledged, {len(stored)} stored"
    assert len(books.acknowledged) >= deaths, f"hardly anything was sent: {counts}"
    return [fault for one in groups for fault in one.check(books, stored)]


@pytest.mark.crash
@pytest.mark.finding("E3")
def test_kills_under_live_consumers(tmp_path: Path, consumer_kills: int, seed: int) -> None:
    victim = Victim(tmp_path, seed, **KEYS)
    faults = run(victim, consumer_kills, None)
    assert faults == [], f"seed {seed}, {consumer_kills} kills, log {tmp_path}/broker.log"


@pytest.mark.crash
@pytest.mark.finding("E3")
def test_power_cuts_under_live_consumers(tmp_path: Path, power_cuts: int, seed: int) -> None:
    victim = Victim(tmp_path, seed, flushDiskType="SYNC_FLUSH", **KEYS)
    disk = victim.on_volatile_disk(delay_ms=8.0)
    faults = run(victim, power_cuts, disk)
    assert faults == [], f"seed {seed}, {power_cuts} power cuts, log {tmp_path}/broker.log"
