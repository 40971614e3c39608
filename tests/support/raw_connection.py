"""Raw peer that writes bytes and reads frames."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from duemq.net import codec, layout
from duemq_common.request import Request, Response

WAIT_S = 60.0


class RawPeer:
    """Peer on a plain socket, without the product's connection code."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, request: Request, *, serialize_type: int = layout.JSON_TYPE) -> None:
        self.writer.write(codec.encode_request(request, serialize_type=serialize_type))

    async def read_frame(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            prefix = await self.reader.readexactly(8)
            length, _ = layout.PREFIX.unpack(prefix)
            return prefix + await self.reader.readexactly(length - 4)

    async def read(self) -> Request | codec.ReceivedResponse:
        data = memoryview(await self.read_frame())
        frame = codec.next_frame(data, 0, len(data))
        assert frame is not None
        return codec.decode_frame(data, frame)

    async def read_response(self) -> codec.ReceivedResponse:
        command = await self.read()
        assert isinstance(command, codec.ReceivedResponse)
        return command

    async def at_end(self) -> bool:
        """Wait for the end of the stream; return whether no bytes were received before it."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


async def echo(request: Request) -> Response:
    return Response(0, None, dict(request.fields), request.body)
