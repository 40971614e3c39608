"""Decisions about pending messages of a simulated group of brokers: cancel, move, fire.

A response is final, whatever fails afterwards: a cancelled message is never delivered, all others
are delivered once, and only moved or fired messages can be delivered before their original time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from duemq_common.codes import RequestCode
from duemq_common.request import Request

if TYPE_CHECKING:
    from tests.simulation.group_load import GroupLoad, Sent

CALL_S_MAX: Final = 2.0
CODES: Final = (
    RequestCode.CANCEL_PENDING,
    RequestCode.CANCEL_PENDING,
    RequestCode.MOVE_PENDING,
    RequestCode.FIRE_PENDING,
)
MOVES_MS: Final = (0, 1_000, 4_000)
LATEST: Final = 8


class Decisions:
    """Operator that sends decisions.

    Attributes:
        done: Number of decisions with the response `done`.
    """

    def __init__(self, load: GroupLoad) -> None:
        self._load, self._chance = load, load.chance
        self.done = 0

    async def run(self) -> None:
        """Send decisions about recently acknowledged messages, until the load stops."""
        clients = self._load.clients()
        while not self._load.stops:
            await asyncio.sleep(self._chance.choice([0.1, 0.4, 1.0]))
            found = [each for each in self._load.sent.values() if each.is_delayed]
            if not found:
                continue
            message = self._chance.choice(found[-LATEST:])
            code = self._chance.choice(CODES)
            message.decisions.add(code)
            delay_ms = self._chance.choice(MOVES_MS)
            try:
                response = await clients[self._load.favourite].call(
                    Request(code, {}, _body(code, message, delay_ms)),
                    timeout_s=CALL_S_MAX,
                )
            except OSError:
                continue
            if response.code == 0:
                body = bytes(response.body)
                self._take(code, message, body, delay_ms)
        for client in clients.values():
            await client.close()

    def _take(self, code: int, message: Sent, body: bytes, delay_ms: int) -> None:
        [result] = msgspec.json.decode(body)["results"]
        if result["verdict"] != "done":
            return
        self.done += 1
        if code == RequestCode.CANCEL_PENDING:
            message.is_cancelled = True
        if code == RequestCode.MOVE_PENDING and delay_ms > 0:  # else it is delivered at once
            message.moves += 1


def _body(code: int, message: Sent, delay_ms: int) -> bytes:
    wanted: dict[str, Any] = {"ids": [message.id]}
    if code == RequestCode.MOVE_PENDING:
        wanted["delay_ms"] = delay_ms
    return msgspec.json.encode(wanted)
