"""Producer of transactions in a simulated group of brokers.

The producer commits or rolls back a half message at the current master, or leaves it unresolved.
A committed message is delivered once, and not before its time if it is delayed; other half messages
are never delivered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from tests.support.send_path import send_request

if TYPE_CHECKING:
    from tests.simulation.group_load import GroupLoad

COMMIT, ROLLBACK = "8", "12"
DELAYS: Final = ("", "", "DELAY\x012\x02", "TIMER_DELAY_MS\x011500\x02")
CALL_S_MAX: Final = 2.0
ATTEMPTS_MAX: Final = 10
PROPERTIES: Final = {"transactionCheckInterval": "4000", "transactionTimeOut": "3000"}
"""Configuration of the members: unresolved half messages are put again, as for checks."""


class End(Enum):
    """Resolution of a half message, as known to its producer."""

    NONE = (0, 0)
    COMMITTED = (1, 1)
    MAYBE_COMMITTED = (0, 1)
    ROLLED_BACK = (0, 0)

    def allows(self, count: int) -> bool:
        """Return whether a number of deliveries is allowed."""
        least, most = self.value
        return least <= count <= most


@dataclass(slots=True)
class Half:
    """Acknowledged half message."""

    body: bytes
    queue_offset: str
    log_offset: int


class Transactions:
    """Producer of transactions.

    Attributes:
        ends: Resolution of each half message, by body.
        answered: Number of confirmed resolutions.
    """

    def __init__(self, load: GroupLoad) -> None:
        self._load, self._chance = load, load.chance
        self.ends: dict[bytes, End] = {}
        self.answered = 0

    async def run(self) -> None:
        """Send half messages until the load stops."""
        clients = self._load.clients()
        async with asyncio.TaskGroup() as tasks:
            while not self._load.stops:
                half = await self._send(clients[self._load.favourite])
                if half is not None:
                    tasks.create_task(self._end(clients, half))
                await asyncio.sleep(self._chance.choice([0.1, 0.5, 1.5]))
        for client in clients.values():
            await client.close()

    async def _send(self, client: RemotingClient) -> Half | None:
        """Send a half message; return it if acknowledged."""
        number = len(self.ends)
        body = b"<half %d>" % number
        self.ends[body] = End.NONE
        text = f"UNIQ_KEY\x01half{number}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
        request = send_request(
            code=10,
            body=body,
            topic=self._load.topic(),
            queueId="0",
            sysFlag="4",
            properties=text + self._chance.choice(DELAYS),
        )
        try:
            response = await client.call(request, timeout_s=CALL_S_MAX)
        except OSError:
            return None
        if response.code:
            return None
        assert response.fields is not None
        log_offset = int(response.fields["msgId"][16:], 16)
        self._load.confirmed.check_acknowledged(log_offset, body, client.address)
        return Half(body, response.fields["queueOffset"], log_offset)

    async def _end(self, clients: dict[str, RemotingClient], half: Half) -> None:
        """Commit a half message, roll it back, or leave it unresolved."""
        verdict = self._chance.choice([COMMIT, COMMIT, ROLLBACK, ""])
        await asyncio.sleep(self._chance.choice([0.0, 0.0, 1.0, 5.0]))
        if not verdict:
            return
        fields = {
            "producerGroup": "p",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": str(half.log_offset),
            "commitOrRollback": verdict,
            "fromTransactionCheck": "false",
            "msgId": half.body.decode(),
        }
        request = Request(RequestCode.END_TRANSACTION, fields)
        self.ends[half.body] = End.MAYBE_COMMITTED if verdict == COMMIT else End.ROLLED_BACK
        for _ in range(ATTEMPTS_MAX):
            try:
                response = await clients[self._load.favourite].call(request, timeout_s=CALL_S_MAX)
            except OSError:
                continue
            if response.code == 0:
                self.answered += 1
                if verdict == COMMIT:
                    self.ends[half.body] = End.COMMITTED
                return
            await asyncio.sleep(0.3)


def check_transactions(arrived: Counter[bytes], ends: dict[bytes, End]) -> None:
    """Check the number of deliveries of half messages.

    Args:
        arrived: Number of deliveries by body.
    """
    for body, end in ends.items():
        count = arrived[body]
        assert end.allows(count), f"{body!r} ({end.name.lower()}) came {count} times"
