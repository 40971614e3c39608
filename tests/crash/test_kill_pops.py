"""SIGKILL at random times while a group pops: in the end every sent message is acknowledged.

--pop-kills N   number of kills (3; `make test-all` and `make soak` use more)
--seed N        seed of the run to repeat; a failing run prints its seed

The group does not acknowledge the first delivery of every fifth message. After a kill, messages of
the last seconds may be redelivered, as with Apache's broker, but none may be lost. An
acknowledgement without a response counts only if the broker's log contains it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duemq.net.client import RemotingClient
from duemq.pop.checkpoints import parse_revive_record
from duemq.pop.names import ACK_TAG, BATCH_ACK_TAG
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode
from duemq_common.errors import PeerError
from duemq_common.request import Request
from tests.crash.killed_broker import LOG_FILE_BYTES, KilledBroker
from tests.crash.sent_messages import SentMessages, number_of, send_until
from tests.support.naive_index import records_of
from tests.support.pop_client import Popped, popped

TOPIC, GROUP = "CrashP", "g"
KEYS = {"brokerName": "test", "flushConsumerOffsetInterval": "200"}
AckName = tuple[str, int, int, int, int]
"""Topic, queue, start offset and pop time of the checkpoint; queue offset of the message."""
INVISIBLE_MS, POLL_MS = 1_500, 100
SENDS_IN_FLIGHT, CONSUMERS = 6, 3
LEFT_EVERY = 5
CALL_S, PAUSE_S = 5.0, 0.05
DRAIN_S = 240.0


@dataclass(slots=True)
class PoppingGroup:
    """Popping group and its acknowledged messages, by sequence number.

    Attributes:
        acknowledged: Messages whose acknowledgement was confirmed, or is in the log.
        unanswered: Sequence numbers of messages whose acknowledgement got no response, by the
            identity of the acknowledgement.
        turns: Number of popped messages so far.
    """

    acknowledged: set[int] = field(default_factory=set)
    unanswered: dict[AckName, int] = field(default_factory=dict)
    turns: int = 0

    async def work(self, address: str, stop: asyncio.Event, *, leaves: bool) -> None:
        """Run consumers that pop and acknowledge, until the broker ends or `stop` is set."""
        await asyncio.gather(
            *(self._consume(address, stop, leaves=leaves) for _ in range(CONSUMERS))
        )

    async def _consume(self, address: str, stop: asyncio.Event, *, leaves: bool) -> None:
        async with RemotingClient(address) as client:
            while not stop.is_set():
                try:
                    found = await self._pop(client)
                    await asyncio.gather(
                        *(self._acknowledge(client, each) for each in self._kept(found, leaves))
                    )
                except TimeoutError:  # the machine is busy: the messages are popped again
                    continue
                except (OSError, PeerError):
                    return

    def _kept(self, found: list[Popped], leaves: bool) -> list[Popped]:
        kept = []
        for each in found:
            self.turns += 1
            if not leaves or self.turns % LEFT_EVERY != 1:  # the first one is left
                kept.append(each)
        return kept

    async def _pop(self, client: RemotingClient) -> list[Popped]:
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": str(POLL_MS),
            "bornTime": str(SystemClock().now_ms()),
            "initMode": "0",
        }
        request = Request(RequestCode.POP_MESSAGE, fields, version=479)
        response = await client.call(request, timeout_s=CALL_S)
        if response.code:  # no messages, or the topic does not exist yet
            await asyncio.sleep(PAUSE_S)
            return []
        return popped(response, TOPIC)

    async def _acknowledge(self, client: RemotingClient, message: Popped) -> None:
        fields = {
            "consumerGroup": GROUP,
            "topic": message.real_topic,
            "queueId": str(message.queue_id),
            "offset": str(message.offset),
            "extraInfo": message.handle,
        }
        request = Request(RequestCode.ACK_MESSAGE, fields, version=479)
        number = number_of(message.record)
        start, pop_ms = (int(part) for part in message.handle.split(" ")[:2])
        name = message.real_topic, message.queue_id, start, pop_ms, message.offset
        self.unanswered[name] = number
        response = await client.call(request, timeout_s=CALL_S)
        del self.unanswered[name]
        if response.code == 0:
            self.acknowledged.add(number)

    def settle(self, root: Path) -> None:
        """Search the log of the store `root` for the unanswered acknowledgements."""
        for record in records_of(root, LOG_FILE_BYTES):
            if record.properties.get("TAGS") not in (ACK_TAG, BATCH_ACK_TAG):
                continue
            ack = parse_revive_record(record, KEYS["brokerName"])
            for offset in ack.offsets:
                name = ack.topic, ack.queue_id, ack.start_offset, ack.pop_ms, offset
                if name in self.unanswered:
                    self.acknowledged.add(self.unanswered[name])
        self.unanswered.clear()


async def work_and_kill(broker: KilledBroker, sent: SentMessages, group: PoppingGroup) -> None:
    """Send and pop until the broker is killed at a random time."""
    stop = asyncio.Event()
    killer = broker.kill_later(sent, 0.3, 2.5)
    try:
        working = group.work(broker.address, stop, leaves=True)
        await asyncio.gather(send_until(sent, broker.address, stop, SENDS_IN_FLIGHT), working)
    finally:
        killer.join()


async def drain(broker: KilledBroker, sent: SentMessages, group: PoppingGroup) -> None:
    """Pop and acknowledge the remaining messages."""
    stop = asyncio.Event()
    working = asyncio.create_task(group.work(broker.address, stop, leaves=False))
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while not sent.acknowledged <= group.acknowledged:  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_S)
    stop.set()
    await working


@pytest.mark.crash
def test_kills_while_a_group_pops(tmp_path: Path, pop_kills: int, seed: int) -> None:
    broker = KilledBroker(tmp_path, seed, **KEYS)
    sent = SentMessages(TOPIC, queues=3, delays_ms=(1_000,), timers_ms=(30, 400))
    group = PoppingGroup()
    for _ in range(pop_kills):
        broker.start()
        asyncio.run(work_and_kill(broker, sent, group))
    group.settle(broker.root)
    broker.start()
    try:
        asyncio.run(drain(broker, sent, group))
    finally:
        broker.kill()
    group.settle(broker.root)
    where = f"seed {seed}, {pop_kills} kills, log {tmp_path}/broker.log"
    lost = sorted(sent.acknowledged - group.acknowledged)
    assert not lost, f"{len(lost)} of {len(sent.acknowledged)} lost, {lost[:5]}: {where}"
    assert len(sent.acknowledged) >= pop_kills, where
    assert group.turns > len(sent.acknowledged), where  # some were redelivered
