"""Popping consumers in a simulated group of brokers, and a check of the last log.

Each popped message is acknowledged immediately, late, or not at all, at the current master. The
log of the last master shows the result: each pop has either an acknowledgement in time or a copy
of the message in the retry topic.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from duemq.net.client import RemotingClient
from duemq.pop.checkpoints import Acknowledgement, Key, PopCheckpoint, parse_revive_record
from duemq.pop.names import revive_topic
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from duemq_common.topics import RETRY_PREFIX, TIMER_TOPIC
from message_store.log.record import Record
from tests.simulation.group_rig import GROUP as BROKER
from tests.support.pop_client import Popped, popped

if TYPE_CHECKING:
    from tests.simulation.group_load import GroupLoad

TOPIC: Final = "T"
GROUP: Final = "poppers"
INVISIBLE_MS: Final = (300, 2_000, 6_000)
CALL_S_MAX: Final = 2.0
ATTEMPTS_MAX: Final = 10
REVIVE_TOPIC: Final = revive_topic("sim")


class Pops:
    """Popping consumers.

    Attributes:
        acknowledged: Popped topic, queue and queue offset of messages whose acknowledgement was
            confirmed.
    """

    def __init__(self, load: GroupLoad) -> None:
        self._load, self._chance = load, load.chance
        self.acknowledged: set[tuple[str, int, int]] = set()

    async def run(self) -> None:
        """Pop until the load stops."""
        clients = self._load.clients()
        async with asyncio.TaskGroup() as tasks:
            while not self._load.stops:
                try:
                    found = await self._pop(clients[self._load.favourite])
                except OSError:
                    found = []
                for message in found:
                    tasks.create_task(self._process(clients, message))
                await asyncio.sleep(self._chance.choice([0.05, 0.3, 1.0]))
        for client in clients.values():
            await client.close()

    async def _pop(self, client: RemotingClient) -> list[Popped]:
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "pollTime": "0",
            "maxMsgNums": str(self._chance.choice([1, 4, 32])),
            "initMode": "0",
            "bornTime": "0",
            "invisibleTime": str(self._chance.choice(INVISIBLE_MS)),
        }
        request = Request(RequestCode.POP_MESSAGE, fields, version=479)
        response = await client.call(request, timeout_s=CALL_S_MAX)
        return popped(response, TOPIC, BROKER) if response.code == 0 else []

    async def _process(self, clients: dict[str, RemotingClient], message: Popped) -> None:
        """Acknowledge a message, or let its invisible time expire."""
        pause_s = self._chance.choice([0.0, 0.0, 0.1, 2.5, -1.0])
        if pause_s < 0:
            return
        await asyncio.sleep(pause_s)
        topic = message.real_topic.replace(f"{RETRY_PREFIX}g", f"{RETRY_PREFIX}{GROUP}")
        fields = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": str(message.queue_id),
            "offset": str(message.offset),
            "extraInfo": message.handle,
        }
        request = Request(RequestCode.ACK_MESSAGE, fields, version=479)
        for _ in range(ATTEMPTS_MAX):
            try:
                response = await clients[self._load.favourite].call(request, timeout_s=CALL_S_MAX)
            except OSError:
                continue
            if response.code == 0:
                self.acknowledged.add((topic, message.queue_id, message.offset))
                return
            await asyncio.sleep(0.3)


@dataclass(slots=True)
class PopLog:
    """Records of pops in a log.

    Attributes:
        checkpoints: Checkpoints with their log offsets.
        acknowledgements: Log offsets and times of acknowledgements, by checkpoint.
        copies: Log offsets of copies in retry topics, by the log offset of the source.
    """

    checkpoints: list[tuple[int, PopCheckpoint]] = field(default_factory=list)
    acknowledgements: dict[Key, list[tuple[Record, Acknowledgement]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    copies: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    places: dict[tuple[str, int, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, records: list[Record]) -> PopLog:
        found = cls()
        for record in records:
            found.places[record.topic, record.queue_id, record.queue_offset] = record.phys_offset
            if record.topic.startswith(RETRY_PREFIX) and record.prepared_offset > 0:
                found.copies[record.prepared_offset].append(record.phys_offset)
            if "TIMER_DEL_UNIQKEY" in record.properties:  # of a pop ahead of the clock, fired
                continue
            real = record.properties.get("REAL_TOPIC") if record.topic == TIMER_TOPIC else None
            direct = record.topic == REVIVE_TOPIC and record.prepared_offset >= 0
            if real == REVIVE_TOPIC or direct:
                parsed = parse_revive_record(record, BROKER)
                if isinstance(parsed, PopCheckpoint):
                    found.checkpoints.append((record.phys_offset, parsed))
                else:
                    found.acknowledgements[parsed.key].append((record, parsed))
        return found

    def popped(
        self,
    ) -> Iterator[tuple[tuple[str, int, int], PopCheckpoint, list[Record], list[int]]]:
        """Yield position, checkpoint, acknowledgements and later copies of each popped message."""
        for at, checkpoint in self.checkpoints:
            for offset in checkpoint.offsets:
                place = checkpoint.topic, checkpoint.queue_id, offset
                acknowledgements = [
                    record
                    for record, each in self.acknowledgements[checkpoint.key]
                    if offset in each.offsets
                ]
                copies = [each for each in self.copies[self.places[place]] if each > at]
                yield place, checkpoint, acknowledgements, copies


def undecided_in(records: list[Record]) -> int:
    """Return the number of popped messages that are neither acknowledged nor copied."""
    return sum(not acks and not copies for _, _, acks, copies in PopLog.of(records).popped())


def check_pops(records: list[Record], acknowledged: set[tuple[str, int, int]]) -> int:
    """Check all pops of the last master's log; return the number of popped messages."""
    pops, known = Counter[Any](), set[tuple[str, int, int]]()
    found = list(PopLog.of(records).popped())
    for place, *_ in found:
        pops[place] += 1
        assert pops[place] == 1, f"{place} was popped again"
    for place, checkpoint, acks, copies in found:
        assert len(copies) <= 1, f"{place} was revived {len(copies)} times"
        assert acks or copies, f"{place} was popped, and has not come back"
        known |= {place} if acks else set()
        if acks and copies and copies[0] > acks[0].phys_offset:
            late_ms = acks[0].store_ms - checkpoint.revive_ms
            assert late_ms >= 0, f"{place} was acknowledged {-late_ms} ms in time, and came back"
    assert acknowledged <= known, f"acknowledgements are lost: {acknowledged - known}"
    return sum(pops.values())
