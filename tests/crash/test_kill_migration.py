"""`kill -9` while levels become timers and go back: sent is delivered, once, none early.

--migration-kills N   how often to kill (a few; `make soak` uses more)
--seed N              the run to repeat
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker.remoting.client import RemotingClient
from message_store.plugin import Request
from migration.requests import MIGRATE
from tests.crash.books import CALL_TIMEOUT_S, Books, send_until
from tests.crash.victim import Victim, arrivals

DELAYS_MS = (2_000, 4_000, 6_000)
ACTIONS = ("start", "start", "start", "rollback", "rollback", "pause", "resume", "verify")
WISHES_EVERY_S = (0.01, 0.15)
KEYS = {
    "messageDelayLevel": " ".join(f"{delay // 1_000}s" for delay in DELAYS_MS),
    "timerRollWindowSlot": "3600",
    "migrationLatenessTargetMs": "0",
}


async def wish(client: RemotingClient, action: str, **more: Any) -> Any:
    """Ask for something; return the answer, None: refused, as most are."""
    body = json.dumps({"action": action, "who": "chance", **more}).encode()
    answer = await client.call(Request(MIGRATE, {}, body), timeout_s=CALL_TIMEOUT_S)
    return json.loads(bytes(answer.body)) if answer.code == 0 else None  # type: ignore[arg-type]


async def wish_at_random(victim: Victim, states: Counter[str], stop: asyncio.Event) -> None:
    """Ask for this and that until the broker is gone; count the states that levels were in."""
    draw = victim.random
    try:
        async with RemotingClient(victim.address) as client:
            while not stop.is_set():
                await wish(client, draw.choice(ACTIONS), levels=[draw.randint(1, len(DELAYS_MS))])
                status = await wish(client, "status")
                states.update(level["state"] for level in status["levels"])
                await asyncio.sleep(draw.uniform(*WISHES_EVERY_S))
    except (OSError, TimeoutError):
        return


async def work_and_kill(victim: Victim, books: Books, states: Counter[str]) -> None:
    """Send and migrate until the broker is killed at a random moment."""
    stop = asyncio.Event()
    fuse = threading.Timer(victim.random.uniform(0.1, 2.5), victim.kill)
    fuse.start()
    try:
        wishing = asyncio.create_task(wish_at_random(victim, states, stop))
        await send_until(books, victim.address, stop)
        stop.set()
        await wishing
    finally:
        fuse.join()


@pytest.mark.crash
def test_kill_while_levels_become_timers_and_go_back(
    tmp_path: Path, migration_kills: int, seed: int
) -> None:
    victim = Victim(tmp_path, seed, **KEYS)
    books = Books("CrashM", queues=3, delays_ms=DELAYS_MS)
    states: Counter[str] = Counter()
    for _ in range(migration_kills):
        victim.start()
        asyncio.run(work_and_kill(victim, books, states))
    arrived = arrivals(victim, books)
    where = f"seed {seed}, {migration_kills} kills, log {tmp_path}/broker.log"
    assert books.faults(arrived) == [], where
    assert len(books.acknowledged) >= migration_kills, f"{where}: hardly anything was sent"
    assert states["done"] + states["draining"] + states["rolling_back"] > 0, f"{where}: {states}"
