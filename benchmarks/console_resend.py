"""Bulk resend of dead letters in the console: the list, and the resend of all.

python -m benchmarks.console resend [letters]
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import httpx

from duemq.client import Admin, Message, Producer, PullConsumer
from duemq.client.admin.topics import TopicSettings
from duemq.client.message import ReceivedMessage
from duemq_common.codes import RequestCode
from duemq_common.request import Response
from tests.support.accounts import KEYS, ROOT
from tests.support.child_process import Child
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import free_ports, listening
from tests.support.wait_until import until

TOPIC, GROUP = "bench", "readers"
BATCH: Final = 64
IN_FLIGHT: Final = 256
READY_S, TIMEOUT_S = 60.0, 300.0
Resend = Callable[[httpx.Client, Child, dict[str, str]], object]


async def make_letters(address: str, count: int) -> None:
    """Send messages, and send each back for the last time."""
    async with Producer(broker=address, credentials=ROOT, timeout_s=TIMEOUT_S) as producer:
        admin = Admin(client=producer.client)
        await admin.create_topic(TOPIC, TopicSettings(read_queues=4, write_queues=4))
        await admin.create_group(GROUP)
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            batch = [Message(TOPIC, b"x" * 100, keys=[f"k{number}"]) for number in numbers]
            await producer.send_batch(batch)
        consumer = PullConsumer(group=GROUP, client=producer.client)
        for queue in await consumer.queues(TOPIC):
            offset, is_at_end = 0, False
            while not is_at_end:
                pulled = await consumer.pull(queue, offset, count=IN_FLIGHT)
                await asyncio.gather(*map(_back(admin, address), pulled.messages))
                offset, is_at_end = pulled.next_offset, pulled.next_offset >= pulled.max_offset


def _back(admin: Admin, address: str) -> Callable[[ReceivedMessage], Awaitable[Response]]:
    code = RequestCode.CONSUMER_SEND_MSG_BACK

    def back(message: ReceivedMessage) -> Awaitable[Response]:
        fields = {
            "offset": message.record.phys_offset,
            "group": GROUP,
            "delayLevel": -1,
            "originMsgId": message.offset_message_id,
            "originTopic": TOPIC,
        }
        return admin.client.ask(address, code, fields, timeout_s=TIMEOUT_S)

    return back


def main(decide: Resend, letters: Sequence[int]) -> None:
    """Store dead letters, and send all of them again twice; the second time nothing is left.

    Args:
        decide: Lists the hits of a search in a form, decides, and prints the times.
    """
    [count] = letters or [100_000]
    [port] = free_ports(1)
    with (
        tempfile.TemporaryDirectory() as directory,
        DueMQ(Path(directory), keys=KEYS | {"consolePort": str(port)}) as server,
    ):
        until(lambda: listening(port), seconds=READY_S, what="the console")
        asyncio.run(make_letters(server.broker_address, count))
        base = f"http://127.0.0.1:{port}/console"
        with httpx.Client(base_url=base, timeout=TIMEOUT_S, follow_redirects=True) as client:
            account = {"access_key": ROOT.access_key, "secret": ROOT.secret}
            assert client.post("/login", data=account).status_code == 200
            for _ in range(2):
                decide(client, server.broker, {"action": "resend", "letters_of": GROUP})
