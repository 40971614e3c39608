"""Decisions about pending messages of a simulated group of brokers: cancel, move, fire.

An answer is final, whatever fails afterwards: a message that was cancelled never comes, all others
come once; only one that was moved or fired may come before its first time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from delivery.plugin import Request
from duemq.messages.decide import CANCEL_WAITING, FIRE_WAITING, MOVE_WAITING

if TYPE_CHECKING:
    from tests.simulation.group_load import GroupLoad, Sent

CALL_S_MAX: Final = 2.0
CODES: Final = (CANCEL_WAITING, CANCEL_WAITING, MOVE_WAITING, FIRE_WAITING)
MOVES_MS: Final = (0, 1_000, 4_000)
LATEST: Final = 8


class Decisions:
    """An operator.

    Attributes:
        done: Number of decisions that were answered with `done`.
    """

    def __init__(self, load: GroupLoad) -> None:
        self._load, self._chance = load, load.chance
        self.done = 0

    async def run(self) -> None:
        """Decide about messages that were acknowledged lately, until the load stops."""
        clients = self._load.clients()
        while not self._load.stops:
            await asyncio.sleep(self._chance.choice([0.1, 0.4, 1.0]))
            found = [each for each in self._load.sent.values() if each.is_delayed]
            if not found:
                continue
            message = self._chance.choice(found[-LATEST:])
            code = self._chance.choice(CODES)
            message.decisions.add(code)
            try:
                answer = await clients[self._load.favourite].call(
                    Request(code, {}, _body(code, message, self._chance.choice(MOVES_MS))),
                    timeout_s=CALL_S_MAX,
                )
            except OSError:
                continue
            if answer.code == 0:
                self._take(code, message, bytes(answer.body))  # type: ignore[arg-type]
        for client in clients.values():
            await client.close()

    def _take(self, code: int, message: Sent, body: bytes) -> None:
        [result] = msgspec.json.decode(body)["results"]
        if result["verdict"] != "done":
            return
        self.done += 1
        if code == CANCEL_WAITING:
            message.is_cancelled = True


def _body(code: int, message: Sent, delay_ms: int) -> bytes:
    wanted: dict[str, Any] = {"ids": [message.id]}
    if code == MOVE_WAITING:
        wanted["delay_ms"] = delay_ms
    return msgspec.json.encode(wanted)
