"""Brokers with consoles that several tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from duemq.broker.broker import Broker
from duemq.client import Admin, Message, Producer, PullConsumer
from tests.duemq.console.rig import Served, served
from tests.support.running_broker import TIMEOUT_S

HOSTILE = '<script>document.title="broken"</script><img src=x onerror=alert(1)>'


async def filled(broker: Broker) -> None:
    """Send pending messages, some with markup in every text, and deliver some."""
    address = f"127.0.0.1:{broker.port}"
    async with Producer(broker=address, timeout_s=TIMEOUT_S) as producer:
        for number in range(30):
            delay = timedelta(minutes=number + 10)
            await producer.send(Message("orders", b"b", keys=[f"k{number}"], delay=delay))
        hour = timedelta(hours=1)
        properties = {"note": HOSTILE}
        message = Message(
            "orders",
            HOSTILE.encode(),
            keys=["<b>k</b>"],
            tag="<i>",
            delay=hour,
            properties=properties,
        )
        await producer.send(message)
        await producer.send(Message("orders", b"now", delay=timedelta(milliseconds=10)))
        await producer.send(Message("orders", b"level", level=10, keys=["level-key"]))
        await producer.send(Message("orders", b"stored"))
    async with Admin(broker=address) as admin:
        await admin.create_group("readers")
    async with PullConsumer(group="readers", broker=address) as consumer:
        [queue] = await consumer.queues("orders")
        await consumer.commit(queue, 0)
        async with asyncio.timeout(TIMEOUT_S):
            while await consumer.max_offset(queue) < 2:  # the stored one, and the one that is due
                pass


@pytest.fixture(scope="module")
def shared_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Console of a broker without accounts; tests change nothing."""
    with served(tmp_path_factory.mktemp("console"), filled) as running:
        yield running
