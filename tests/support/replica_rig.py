"""Rig of replica tests: a master that sends what a test gives it, on a socket of loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TURN_S_MAX = 30
ReadReport = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[int]]


class ScriptedMaster:
    """Takes one connection at a time, and collects its reports.

    Args:
        read_report: Reads up to the next report; may answer what comes before it.
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
        """Return when the replica reports this end of its log."""
        async with asyncio.timeout(TURN_S_MAX):
            while await self.reports.get() != offset:
                pass


async def until(met: Callable[[], object]) -> None:
    """Return when something is true that is not announced."""
    async with asyncio.timeout(TURN_S_MAX):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0)
