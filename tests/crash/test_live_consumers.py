"""Kills and power cuts of a broker with live consumers: no message is lost or replaced.

--consumer-kills N   number of kills (3; `make test-all` and `make soak` use more)
--power-cuts N       number of power cuts (3)
--seed N             seed of the run to repeat; a failing run prints its seed
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.killed_broker import KilledBroker
from tests.crash.live_consumers import ConsumedMessages, consume_until
from tests.crash.sent_messages import SentMessages, number_of, read_all, send_until
from tests.crash.volatile_disk import VolatileDisk

DELAYS_MS = (1_000, 2_000, 3_000)
TIMERS_MS = (30, 100, 400, 1_700)
DRAIN_S, LOOK_S = 240.0, 0.1
KEYS = {"flushConsumerOffsetInterval": "200", "flushIntervalConsumeQueue": "100"}


async def work_and_kill(
    broker: KilledBroker, sent: SentMessages, groups: list[ConsumedMessages]
) -> None:
    """Send and consume until the broker is killed at a random time."""
    stop = asyncio.Event()
    killer = broker.kill_later(sent, 0.1, 1.2)
    try:
        work = [consume_until(one, sent, broker.address, broker.random, stop) for one in groups]
        await asyncio.gather(send_until(sent, broker.address, stop), *work)
    finally:
        killer.join()


async def drain(
    broker: KilledBroker, sent: SentMessages, groups: list[ConsumedMessages]
) -> dict[tuple[int, int], int]:
    """Consume the remaining messages; return the topic's messages by queue and queue offset."""
    stop = asyncio.Event()
    consuming = [
        asyncio.create_task(consume_until(one, sent, broker.address, broker.random, stop))
        for one in groups
    ]
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while not all(one.has_all(sent) for one in groups):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            await all_is_consumed(broker, sent, groups)
    stop.set()
    await asyncio.gather(*consuming)
    return await stored_messages(broker, sent)


async def all_is_consumed(
    broker: KilledBroker, sent: SentMessages, groups: list[ConsumedMessages]
) -> None:
    """Wait until the groups have had all stored messages for as long as the longest delay.

    Unacknowledged messages may be delivered after the acknowledged ones.
    """
    loop = asyncio.get_running_loop()
    since_s = loop.time()
    while loop.time() < since_s + max(DELAYS_MS) / 1_000:
        await asyncio.sleep(LOOK_S)
        stored = await stored_messages(broker, sent)
        if any(one.messages.keys() != stored.keys() for one in groups):
            since_s = loop.time()


async def stored_messages(broker: KilledBroker, sent: SentMessages) -> dict[tuple[int, int], int]:
    """Return the topic's messages by queue and queue offset."""
    records = await read_all(sent, broker.address)
    return {(record.queue_id, record.queue_offset): number_of(record) for record in records}


def run(broker: KilledBroker, kills: int, disk: VolatileDisk | None) -> list[str]:
    """Kill the broker repeatedly while groups consume; return the faults."""
    sent = SentMessages("CrashC", queues=3, delays_ms=DELAYS_MS, timers_ms=TIMERS_MS)
    groups = [
        ConsumedMessages("steady", restarts=False),
        ConsumedMessages("restarting", restarts=True),
    ]
    for _ in range(kills):
        broker.start()
        asyncio.run(work_and_kill(broker, sent, groups))
        if disk is not None:
            disk.cut(broker.random)
    broker.start()
    try:
        stored = asyncio.run(drain(broker, sent, groups))
    finally:
        broker.kill()
    counts = f"{sent.attempted} sent, {len(sent.acknowledged)} acknowledged, {len(stored)} stored"
    assert len(sent.acknowledged) >= kills, f"too few messages were acknowledged: {counts}"
    return [fault for one in groups for fault in one.check(sent, stored)]


@pytest.mark.extended
@pytest.mark.crash
@pytest.mark.finding("E3")
def test_kills_under_live_consumers(tmp_path: Path, consumer_kills: int, seed: int) -> None:
    broker = KilledBroker(tmp_path, seed, **KEYS)
    faults = run(broker, consumer_kills, None)
    assert faults == [], f"seed {seed}, {consumer_kills} kills, log {tmp_path}/broker.log"


@pytest.mark.crash
@pytest.mark.finding("E3")
def test_power_cuts_under_live_consumers(tmp_path: Path, power_cuts: int, seed: int) -> None:
    broker = KilledBroker(tmp_path, seed, flushDiskType="SYNC_FLUSH", **KEYS)
    disk = broker.on_volatile_disk(delay_ms=8.0)
    faults = run(broker, power_cuts, disk)
    assert faults == [], f"seed {seed}, {power_cuts} power cuts, log {tmp_path}/broker.log"
