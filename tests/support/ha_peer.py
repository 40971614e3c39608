"""Scripted replica that uses the HA protocol directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from duemq.replication.layout import REPORT, TRANSFER, TRANSFER_BYTES

TURN_S_MAX = 120  # on a busy machine


class Peer:
    """Connection to a master.

    Attributes:
        transfers: (offset, size) of each received transfer, in order; size 0: heartbeat.
        log: Bytes of the transfers.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.transfers: list[tuple[int, int]] = []
        self.log = bytearray()
        self.acknowledges = asyncio.Event()
        self.acknowledges.set()

    def report(self, *offsets: int) -> None:
        """Send reports of the replica's log end."""
        self.writer.write(b"".join(map(REPORT.pack, offsets)))

    async def transfer(self) -> tuple[int, int]:
        """Return offset and size of the next transfer; append its bytes to `log`."""
        async with asyncio.timeout(TURN_S_MAX):
            return await self._transfer()

    async def _transfer(self) -> tuple[int, int]:
        offset, size = TRANSFER.unpack(await self.reader.readexactly(TRANSFER_BYTES))
        self.log += await self.reader.readexactly(size)
        self.transfers.append((offset, size))
        return offset, size

    async def copy(self, end: int) -> None:
        """Receive transfers until the log is copied up to `end`."""
        while not self.transfers or sum(self.transfers[-1]) < end:
            await self.transfer()

    async def closed(self) -> bytes:
        """Return the bytes received until the master closes the connection."""
        async with asyncio.timeout(TURN_S_MAX):
            return await self.reader.read()

    async def follow(self) -> None:
        """Acknowledge every transfer, while `acknowledges` is set."""
        while True:
            offset, size = await self._transfer()
            await self.acknowledges.wait()
            self.report(offset + size)


async def connect(port: int, *offsets: int) -> Peer:
    """Return a connected replica that has reported these offsets."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port))
    peer.report(*offsets)
    return peer


@asynccontextmanager
async def following(port: int, offset: int = 1) -> AsyncIterator[Peer]:
    """Yield a replica that acknowledges all transfers, starting at `offset`."""
    peer = await connect(port, offset)
    task = asyncio.create_task(peer.follow())
    try:
        yield peer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            await task
        peer.writer.close()
