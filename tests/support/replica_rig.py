"""Scripted master for replica tests, on a loopback socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TURN_S_MAX = 120  # on a busy machine
ReadReport = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[int]]


class ScriptedMaster:
    """Master that accepts one connection at a time and records its reports.

    Args:
        read_report: Reads the next report; can respond to messages before it.
    """

    def __init__(self, read_report: ReadReport) -> None:
        self._read_report = read_report
        self.reports: asyncio.Queue[int] = asyncio.Queue()
        self.connected: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        self.connected.put_nowait(writer)
        try:
            while True:
                self.reports.put_nowait(await self._read_report(reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def reported(self, offset: int) -> None:
        """Wait until the replica reports a log end."""
        async with asyncio.timeout(TURN_S_MAX):
            while await self.reports.get() != offset:
                pass


async def until(met: Callable[[], object]) -> None:
    """Turn the event loop until a condition is true, which a thread or a peer may make true.

    The limit is a time: a number of turns can pass before the other thread runs at all.
    """
    async with asyncio.timeout(TURN_S_MAX):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0)
