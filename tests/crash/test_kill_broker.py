"""SIGKILL at random times: no acknowledged message is lost, and none is duplicated or early.

--kills N    number of kills (20; `make test-all` and `make soak` use more)
--seed N     seed of the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from tests.crash.killed_broker import KilledBroker, wait_for_deliveries
from tests.crash.sent_messages import SentMessages, send_until
from tests.crash.store_audit import audit_faults

DELAYS_MS = (1_000, 2_000, 3_000)
TIMERS_MS = (30, 400, 1_000, 1_700, 4_000, 9_000)  # the last two exceed the roll window


async def send_and_kill(broker: KilledBroker, sent: SentMessages) -> None:
    """Send until a thread kills the broker at a random time."""
    stop = asyncio.Event()
    killer = broker.kill_later(sent, 0.02, 0.9)
    try:
        await send_until(sent, broker.address, stop)
    finally:
        killer.join()


@dataclass(frozen=True)
class Killed:
    """Finished run with its faults; after a last kill the store has pending messages to audit."""

    broker: KilledBroker
    sent: SentMessages
    faults: list[str]
    where: str


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, kills: int, seed: int) -> Killed:
    home = tmp_path_factory.mktemp("killed")
    broker = KilledBroker(home, seed)
    sent = SentMessages("CrashT", queues=3, delays_ms=DELAYS_MS, timers_ms=TIMERS_MS)
    for _ in range(kills):
        broker.start()
        asyncio.run(send_and_kill(broker, sent))
    faults = sent.faults(wait_for_deliveries(broker, sent))
    broker.start()
    asyncio.run(send_and_kill(broker, sent))
    return Killed(broker, sent, faults, f"seed {seed}, {kills} kills, log {home}/broker.log")


@pytest.mark.crash
def test_kills_at_random_times(killed: Killed, kills: int) -> None:
    assert killed.faults == [], killed.where
    assert len(killed.sent.acknowledged) >= kills, (
        f"{killed.where}: too few messages were acknowledged"
    )


@pytest.mark.extended
@pytest.mark.crash
@pytest.mark.spark
def test_audit_agrees_with_sent_messages(killed: Killed, spark: Any) -> None:
    assert audit_faults(spark, killed.broker.root, killed.sent) == [], killed.where
