"""Clients of a simulated group that send plain and delayed messages, pull, and commit offsets.

A sender tries all members until one accepts. Each message is sent once; without a response it is
unknown whether it was stored. Readers pull from masters and replicas; pulled messages must be
confirmed and must never change.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from message_store.log.record import decode_record
from tests.simulation.group_checks import READERS, TOPICS, Confirmed
from tests.simulation.group_decisions import Decisions
from tests.simulation.group_migration import Migrations
from tests.simulation.group_pops import Pops
from tests.simulation.group_rig import GroupRig
from tests.simulation.group_transactions import Transactions
from tests.support.loopback_broker import pull_request
from tests.support.send_path import send_request

QUEUES: Final = 2
SENDERS: Final = 3
SEND_S_MAX: Final = 3.0
TIMERS_MS: Final = (1, 300, 1_500, 4_000, 9_000)
LEVELS: Final = (1, 2, 3, 4)
FOUND: Final = 0


@dataclass(slots=True)
class Sent:
    """Sent message.

    Attributes:
        offset: Log offset from the acknowledgement; None: not acknowledged.
        id: Offset message id, if acknowledged.
        decisions: Codes of the decisions sent about the message.
        is_cancelled: Whether a response confirmed its cancellation.
        moves: Number of responses that confirmed a move to a later time.
    """

    kind: str
    offset: int | None = None
    id: str = ""
    decisions: set[int] = field(default_factory=set)
    is_cancelled: bool = False
    moves: int = 0

    @property
    def is_delayed(self) -> bool:
        """Whether the message was acknowledged as a delayed message."""
        return self.offset is not None and self.kind != "plain"


class GroupLoad:
    """Clients of the group, in one process.

    Attributes:
        sent: Messages by body.
        shown: Pulled bodies, by topic, queue and queue offset.
        acknowledged: Number of acknowledgements.
        committed: Highest consumer offset in a commit request, by topic and queue.
        favourite: Address of the member that last accepted a message.
        stops: Whether the clients stop sending and reading.
        ends: Whether the operator of migrations also stops.
    """

    def __init__(self, rig: GroupRig, confirmed: Confirmed) -> None:
        self._rig, self.chance, self.confirmed = rig, rig.chance, confirmed
        self.sent: dict[bytes, Sent] = {}
        self.shown: dict[tuple[str, int, int], bytes] = {}
        self.acknowledged = 0
        self.committed: dict[tuple[str, int], int] = {}
        self.codes: dict[int, int] = {}
        self._serial = 0
        self.stops = self.ends = False
        self.favourite = rig.members[0].address
        self.pops, self.transactions = Pops(self), Transactions(self)
        self.decisions, self.migrations = Decisions(self), Migrations(self)
        self.process = rig.new_client("client")
        self.process.start(self._run())

    def stop(self) -> None:
        """Stop sending and reading."""
        self.stops = True

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(SENDERS):
                tasks.create_task(self._send(), name=f"sender {number}")
            tasks.create_task(self._read(), name="reader")
            for part in (self.pops, self.transactions, self.decisions, self.migrations):
                tasks.create_task(part.run(), name=type(part).__name__)

    def topic(self) -> str:
        """Return the topic of the next message."""
        return self.chance.choice(TOPICS)

    def clients(self) -> dict[str, RemotingClient]:
        return {each.address: RemotingClient(each.address) for each in self._rig.members}

    # -- sending --------------------------------------------------------------------------------

    async def _send(self) -> None:
        clients = self.clients()
        while not self.stops:
            address = self.favourite
            if self.chance.random() < 0.1:
                address = self.chance.choice(list(clients))
            if not await self._send_one(clients[address]) and address == self.favourite:
                self.favourite = self.chance.choice(list(clients))
            await asyncio.sleep(self.chance.choice([0.001, 0.02, 0.1, 0.3]))
        for client in clients.values():
            await client.close()

    async def _send_one(self, client: RemotingClient) -> bool:
        """Send a message; return whether it was acknowledged."""
        kind, properties = self._properties()
        self._serial += 1
        body = b"<%d %s>" % (self._serial, b"x" * self.chance.choice([0, 10, 900]))
        sent = self.sent[body] = Sent(kind)
        request = send_request(
            code=self.chance.choice([10, 310]),
            body=body,
            topic=self.topic(),
            queueId=str(self.chance.randrange(QUEUES)),
            properties=f"UNIQ_KEY\x01{self._serial}\x02" + properties,
        )
        try:
            response = await client.call(request, timeout_s=SEND_S_MAX)
        except OSError:
            return False
        self.codes[response.code] = self.codes.get(response.code, 0) + 1
        if response.code:
            return False
        assert response.fields is not None
        sent.id = response.fields["msgId"]
        sent.offset = int(sent.id[16:], 16)
        self.confirmed.check_acknowledged(sent.offset, body, client.address)
        self.acknowledged += 1
        return True

    def _properties(self) -> tuple[str, str]:
        kind = self.chance.choice(["plain", "level", "level", "delay", "deliver"])
        delay_ms = self.chance.choice(TIMERS_MS)
        if kind == "level":
            return kind, f"DELAY\x01{self.chance.choice(LEVELS)}\x02"
        if kind == "delay":
            return kind, f"TIMER_DELAY_MS\x01{delay_ms}\x02"
        if kind == "deliver":
            due_ms = self.process.host.clock.now_ms() + delay_ms
            return kind, f"TIMER_DELIVER_MS\x01{due_ms}\x02"
        return kind, ""

    # -- reading --------------------------------------------------------------------------------

    async def _read(self) -> None:
        clients = self.clients()
        ends = {(topic, queue): 0 for topic in TOPICS for queue in range(QUEUES)}
        while not self.stops:
            place = self.chance.choice(list(ends))
            client = self.chance.choice(list(clients.values()))
            begin = self.chance.choice([ends[place], max(ends[place] - 5, 0)])
            request = pull_request(*place, begin, maxMsgNums="32")
            try:
                response = await client.call(request, timeout_s=1.0)
            except OSError:
                continue
            if response.code == FOUND:
                ends[place] = max(ends[place], self._take(place, begin, response, client.address))
                await self._commit(clients[self.favourite], place, ends[place])
            await asyncio.sleep(self.chance.choice([0.01, 0.05, 0.2]))
        for client in clients.values():
            await client.close()

    async def _commit(self, client: RemotingClient, place: tuple[str, int], end: int) -> None:
        """Commit an offset at the member that last accepted a message."""
        topic, queue = place
        self.committed[place] = end
        fields = {"consumerGroup": READERS, "topic": topic, "queueId": str(queue)}
        request = Request(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(end)})
        with suppress(OSError):
            await client.call(request, timeout_s=1.0)

    def _take(self, place: tuple[str, int], at: int, response: Response, where: str) -> int:
        """Check the response to a pull; return the next queue offset."""
        view = memoryview(bytes(response.body))
        while view:
            size = int.from_bytes(view[:4], "big")
            record = decode_record(view[:size], 0, check_crc=True)
            assert record.queue_offset == at, (place, at, record.queue_offset, where)
            known = self.shown.setdefault((*place, at), record.body)
            assert known == record.body, f"{where} shows {record.body!r} at {place} {at}: {known!r}"
            self.confirmed.check_shown(record.phys_offset, bytes(view[:size]), where)
            view, at = view[size:], at + 1
        return at
