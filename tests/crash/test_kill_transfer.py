"""SIGKILL of client, source and target during transfers: the target gets each message once.

--kills N    a fifth of it is the number of kills, at least 4
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from duemq.cli.decoded_page import decode_page
from duemq.cli.timers_export import pages_of
from duemq.client.client import Client
from duemq.client.message import Message
from duemq.client.producer import Producer
from duemq_common.clock import SystemClock
from tests.crash.killed_broker import ROOT, KilledBroker
from tests.support.child_process import Child
from tests.support.commands import duemq
from tests.support.wait_until import until

TOPIC, MESSAGES, IN_FLIGHT = "Transfers", 6_000, 64
KILL_MS = (600, 1_600)
"""Time from the start of a client to a kill; the client sends its first request after 700 ms."""
END_S = 120.0


async def send_all(address: str) -> None:
    # a send that is repeated after a timeout would store the message again, with another due time
    async with Producer(broker=address, timeout_s=END_S) as producer:

        async def one_lane(lane: int) -> None:
            for number in range(lane, MESSAGES, IN_FLIGHT):
                delay = timedelta(hours=1, seconds=number % 600)
                own_id = f"{number:032}"
                message = Message(TOPIC, b"body", delay=delay, message_id=own_id)
                await producer.send(message)

        async with asyncio.TaskGroup() as group:
            for lane in range(IN_FLIGHT):
                group.create_task(one_lane(lane))


async def pending_of(address: str) -> Counter[tuple[str, int]]:
    async with Client(broker=address) as client:
        pages = [decode_page(each) async for each in pages_of(client, address)]
    assert not any(page.damaged or page.left_out for page in pages)
    return Counter((line.unique_id, line.due_ms) for page in pages for line in page.lines)


def run_for(client: Child, span_ms: int) -> None:
    """Wait for some time, or until the client has ended."""
    clock = SystemClock()
    end_ms = clock.now_ms() + span_ms
    until(lambda: clock.now_ms() >= end_ms or not client.running, seconds=60, what="a kill")


def wait_for_end(client: Child) -> None:
    until(lambda: not client.running, seconds=END_S, what="the client ends")


@pytest.mark.extended
@pytest.mark.crash
def test_kills_during_transfers(tmp_path: Path, kills: int, seed: int) -> None:
    source, target = (
        KilledBroker(tmp_path / name, seed + number, timerMaxDelaySec="86400")
        for number, name in enumerate(("source", "target"))
    )
    for broker in (source, target):
        broker.home.mkdir()
        broker.start()
    words = ["timers", "transfer", "--broker", source.address, "--to", target.address, "--yes"]
    command, env = [sys.executable, "-m", "duemq", *words], {"PYTHONPATH": str(ROOT)}
    asyncio.run(send_all(source.address))
    expected = asyncio.run(pending_of(source.address))
    assert len(expected) == MESSAGES
    where = f"seed {seed}, logs in {tmp_path}"
    for _ in range(max(kills // 5, 4)):
        client = Child("client", command, log_path=tmp_path / "client.log", env=env)
        processes: list[Child | KilledBroker] = [client, source, target]
        killed = source.random.choice(processes)
        run_for(client, source.random.randint(*KILL_MS))
        killed.kill()
        wait_for_end(client)
        if isinstance(killed, KilledBroker):
            killed.start()
        at_source, at_target = (asyncio.run(pending_of(each.address)) for each in (source, target))
        assert at_source | at_target == expected, where
    done = duemq(*words)
    assert done.returncode == 0, f"{done.stderr}; {where}"
    assert asyncio.run(pending_of(target.address)) == expected, where
    assert not asyncio.run(pending_of(source.address)), where
    for broker in (source, target):
        broker.kill()
