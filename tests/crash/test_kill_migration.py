"""`kill -9` while levels become timers and go back: sent is delivered, once, none early.

--migration-kills N      how often to kill (a few; `make soak` uses more)
--migration-books FILE   write what came out there, as JSON
--seed N                 the run to repeat
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from delivery.plugin import Request
from duemq.net.client import RemotingClient
from migration.requests import MIGRATE
from tests.crash.books import CALL_TIMEOUT_S, PendingCounts, send_until
from tests.crash.left import audit_faults
from tests.crash.victim import Victim, arrivals

DELAYS_MS = (2_000, 4_000, 6_000)
ACTIONS = ("start", "start", "start", "rollback", "rollback", "pause", "resume", "verify")
COMMANDS_EVERY_S = (0.01, 0.15)
LOOKS = 60  # at the states, one right after the other, after a command
WANTED = ("", "routing", "draining", "verifying", "done", "rolling_back", "rolled_back")
"""States to kill in, in turn; "": at any moment. Some last a few ms; one level in it is enough."""
WANTED_WITHIN_S = 6.0  # else it is killed all the same
FIRST_START_S = 60.0  # loads what a migration needs; the machine may be busy
KEYS = {
    "messageDelayLevel": " ".join(f"{delay // 1_000}s" for delay in DELAYS_MS),
    "timerRollWindowSlot": "3600",
    "migrationLatenessTargetMs": "0",
}
RATES = ("0", "300", "3000")  # of the migration: few steps, or many


async def command(
    client: RemotingClient, action: str, *, timeout_s: float = CALL_TIMEOUT_S, **more: Any
) -> Any:
    """Send a command; return the response, None if it was refused, as most are."""
    body = json.dumps({"action": action, "who": "chance", **more}).encode()
    answer = await client.call(Request(MIGRATE, {}, body), timeout_s=timeout_s)
    return json.loads(bytes(answer.body)) if answer.code == 0 else None  # type: ignore[arg-type]


@dataclass(slots=True)
class Seen:
    """States of levels, as the broker told them.

    Attributes:
        told: by state, how often it was told.
        kills: by state, how many kills came when that was told last of some level.
        wanted: the state to kill in, "": at any moment.
    """

    told: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    last: set[str] = field(default_factory=set)
    wanted: str = ""

    def take(self, states: list[str]) -> None:
        """Note what was told."""
        self.told.update(states)
        self.last = set(states)

    def killed(self) -> None:
        """Note a kill."""
        self.kills.update(self.last or {"nothing yet"})
        self.last = set()


async def command_at_random(
    victim: Victim, seen: Seen, stop: asyncio.Event, fuse: threading.Timer
) -> None:
    """Send commands until the broker is gone; note the states that levels were in.

    Once a level is in the state that is wanted, the broker is killed. The time until another kill
    begins when a first state was seen, however slow the machine is.
    """
    draw = victim.random
    try:
        async with RemotingClient(victim.address) as client:
            if not seen.told:
                await command(client, "start", levels=[1], timeout_s=FIRST_START_S)
                status = await command(client, "status")
                seen.take([level["state"] for level in status["levels"]])
            fuse.start()
            while not stop.is_set():
                levels = [draw.randint(1, len(DELAYS_MS))]
                await command(client, draw.choice(ACTIONS), levels=levels)
                for _ in range(LOOKS if seen.wanted else 1):
                    status = await command(client, "status")
                    seen.take([level["state"] for level in status["levels"]])
                    if seen.wanted in seen.last:
                        fuse.cancel()
                        victim.kill()
                        return
                await asyncio.sleep(draw.uniform(*COMMANDS_EVERY_S))
    except (OSError, TimeoutError):
        return
    finally:
        if fuse.ident is None:
            fuse.start()


async def work_and_kill(victim: Victim, books: PendingCounts, seen: Seen) -> None:
    """Send and migrate until the broker is killed, in the state that is wanted or at random."""
    stop = asyncio.Event()
    longest_s = WANTED_WITHIN_S if seen.wanted else 2.5
    fuse = threading.Timer(victim.random.uniform(0.1, longest_s), victim.kill)
    try:
        commanding = asyncio.create_task(command_at_random(victim, seen, stop, fuse))
        await send_until(books, victim.address, stop)
        stop.set()
        await commanding
    finally:
        fuse.join()
    seen.killed()


@dataclass(frozen=True)
class Killed:
    """A run, and what a reader found wrong; behind it, one more kill left messages waiting."""

    victim: Victim
    books: PendingCounts
    seen: Seen
    faults: list[str]
    where: str


@pytest.fixture(scope="module")
def killed(
    tmp_path_factory: pytest.TempPathFactory,
    migration_kills: int,
    migration_books: Path | None,
    seed: int,
) -> Killed:
    home = tmp_path_factory.mktemp("killed")
    victim = Victim(home, seed, **KEYS)
    books = PendingCounts("CrashM", queues=3, delays_ms=DELAYS_MS)
    seen = Seen()
    for number in range(migration_kills):
        seen.wanted = WANTED[number % len(WANTED)]
        victim.keys["migrationRate"] = victim.random.choice(RATES)
        victim.start()
        asyncio.run(work_and_kill(victim, books, seen))
    arrived = arrivals(victim, books)
    faults = books.faults(arrived)
    if migration_books is not None:
        found = {
            "kills": migration_kills, "seed": seed, "kills_by_state": dict(seen.kills),
            "sent": books.attempted, "acknowledged": len(books.acknowledged),
            "arrived": len(arrived), "faults": faults,
        }  # fmt: skip
        migration_books.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    victim.start()
    asyncio.run(work_and_kill(victim, books, Seen()))
    where = f"seed {seed}, {migration_kills} kills, log {home}/broker.log"
    return Killed(victim, books, seen, faults, where)


@pytest.mark.crash
def test_kill_while_levels_become_timers_and_go_back(killed: Killed, migration_kills: int) -> None:
    where, told = killed.where, killed.seen.told
    assert killed.faults == [], where
    assert len(killed.books.acknowledged) >= migration_kills, f"{where}: hardly anything was sent"
    assert told["done"] + told["draining"] + told["rolling_back"] > 0, f"{where}: {told}"


@pytest.mark.crash
@pytest.mark.spark
def test_an_audit_of_what_the_kills_left(killed: Killed, spark: Any) -> None:
    assert audit_faults(spark, killed.victim.root, killed.books) == [], killed.where
