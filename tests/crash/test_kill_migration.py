"""SIGKILL during migrations and rollbacks: no message is lost, duplicated or delivered early.

--migration-kills N       number of kills (a few; `make soak` uses more)
--migration-results FILE  JSON file for the results
--seed N                  seed of the run to repeat
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from tests.crash.killed_broker import KilledBroker, wait_for_deliveries
from tests.crash.sent_messages import CALL_TIMEOUT_S, SentMessages, send_until
from tests.crash.store_audit import audit_faults

DELAYS_MS = (2_000, 4_000, 6_000)
ACTIONS = ("start", "start", "start", "rollback", "rollback", "pause", "resume", "verify")
COMMANDS_EVERY_S = (0.01, 0.15)
STATUS_REQUESTS = 60  # after each command, without a pause, to catch short states
TARGET_STATES = ("", "routing", "draining", "verifying", "done", "rolling_back", "rolled_back")
"""States in which to kill the broker, in turn; "" means any time. One level in a state suffices."""
TARGET_WITHIN_S = 6.0  # the broker is killed after this time whatever the state
FIRST_START_S = 240.0  # the first command loads modules, perhaps on a busy machine
KEYS = {
    "messageDelayLevel": " ".join(f"{delay // 1_000}s" for delay in DELAYS_MS),
    "timerRollWindowSlot": "3600",
    "migrationLatenessTargetMs": "0",
}
RATES = ("0", "300", "3000")  # units per second, 0 for no limit


async def command(
    client: RemotingClient, action: str, *, timeout_s: float = CALL_TIMEOUT_S, **more: Any
) -> Any:
    """Send a command; return the response, or None if the broker refused the command."""
    body = json.dumps({"action": action, "operator": "test", **more}).encode()
    response = await client.call(Request(RequestCode.MIGRATE, {}, body), timeout_s=timeout_s)
    return json.loads(bytes(response.body)) if response.code == 0 else None


@dataclass(slots=True)
class SeenStates:
    """Record of the states of levels that the broker reported.

    Attributes:
        counts: Number of reports by state.
        kills: Number of kills by the last reported state of a level.
        target: State in which to kill the broker; empty: at any time.
    """

    counts: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    last: set[str] = field(default_factory=set)
    target: str = ""

    def take(self, states: list[str]) -> None:
        """Record the states of all levels."""
        self.counts.update(states)
        self.last = set(states)

    def killed(self) -> None:
        """Record a kill."""
        self.kills.update(self.last or {"nothing yet"})
        self.last = set()


async def command_at_random(broker: KilledBroker, seen: SeenStates, stop: asyncio.Event) -> None:
    """Send random commands until the broker ends, and record the states of the levels.

    The broker is killed when a level is in the target state.
    """
    chance = broker.random
    try:
        async with RemotingClient(broker.address) as client:
            while not stop.is_set():
                levels = [chance.randint(1, len(DELAYS_MS))]
                await command(client, chance.choice(ACTIONS), levels=levels)
                for _ in range(STATUS_REQUESTS if seen.target else 1):
                    status = await command(client, "status")
                    seen.take([level["state"] for level in status["levels"]])
                    if seen.target in seen.last:
                        broker.kill()
                        return
                await asyncio.sleep(chance.uniform(*COMMANDS_EVERY_S))
    except (OSError, TimeoutError):
        return


async def migrate_first(broker: KilledBroker, seen: SeenStates) -> None:
    """Send the first command of a run, which loads modules, before the time to the kill begins."""
    async with RemotingClient(broker.address) as client:
        await command(client, "start", levels=[1], timeout_s=FIRST_START_S)
        status = await command(client, "status")
        seen.take([level["state"] for level in status["levels"]])


async def work_and_kill(broker: KilledBroker, sent: SentMessages, seen: SeenStates) -> None:
    """Send and migrate until the broker is killed, in the target state or at a random time."""
    stop = asyncio.Event()
    if not seen.counts:
        await migrate_first(broker, seen)
    killer = broker.kill_later(sent, 0.1, TARGET_WITHIN_S if seen.target else 2.5)
    try:
        commanding = asyncio.create_task(command_at_random(broker, seen, stop))
        await send_until(sent, broker.address, stop)
        stop.set()
        await commanding
    finally:
        killer.join()
    seen.killed()


@dataclass(frozen=True)
class Killed:
    """Finished run with its faults; after a last kill the store has pending messages to audit."""

    broker: KilledBroker
    sent: SentMessages
    seen: SeenStates
    faults: list[str]
    where: str


@pytest.fixture(scope="module")
def killed(
    tmp_path_factory: pytest.TempPathFactory,
    migration_kills: int,
    migration_results: Path | None,
    seed: int,
) -> Killed:
    home = tmp_path_factory.mktemp("killed")
    broker = KilledBroker(home, seed, **KEYS)
    sent = SentMessages("CrashM", queues=3, delays_ms=DELAYS_MS)
    seen = SeenStates()
    for number in range(migration_kills):
        seen.target = TARGET_STATES[number % len(TARGET_STATES)]
        broker.keys["migrationRate"] = broker.random.choice(RATES)
        broker.start()
        asyncio.run(work_and_kill(broker, sent, seen))
    delivered = wait_for_deliveries(broker, sent)
    faults = sent.faults(delivered)
    if migration_results is not None:
        found = {
            "kills": migration_kills,
            "seed": seed,
            "kills_by_state": dict(seen.kills),
            "sent": sent.attempted,
            "acknowledged": len(sent.acknowledged),
            "arrived": len(delivered),
            "faults": faults,
        }
        migration_results.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    broker.start()
    asyncio.run(work_and_kill(broker, sent, SeenStates()))
    where = f"seed {seed}, {migration_kills} kills, log {home}/broker.log"
    return Killed(broker, sent, seen, faults, where)


@pytest.mark.crash
def test_kills_during_migrations_and_rollbacks(killed: Killed, migration_kills: int) -> None:
    where, counts = killed.where, killed.seen.counts
    assert killed.faults == [], where
    assert len(killed.sent.acknowledged) >= migration_kills, (
        f"{where}: too few messages were acknowledged"
    )
    assert counts["done"] + counts["draining"] + counts["rolling_back"] > 0, f"{where}: {counts}"


@pytest.mark.extended
@pytest.mark.crash
@pytest.mark.spark
def test_audit_agrees_with_sent_messages(killed: Killed, spark: Any) -> None:
    assert audit_faults(spark, killed.broker.root, killed.sent) == [], killed.where
