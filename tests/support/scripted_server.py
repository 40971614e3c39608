"""Server that answers requests with the bytes of a script, for tests of clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from duemq.net import codec
from duemq_common.request import Request, Response

Script = Callable[[Request], bytes | None]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """Yield the address of a server that sends the bytes of a script; None: it hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length = await reader.readexactly(4)
                frame = length + await reader.readexactly(int.from_bytes(length))
                view = memoryview(frame)
                request = codec.decode_frame(view, codec.next_frame(view, 0, len(frame)))
                assert isinstance(request, Request)
                reply = script(request)
                if reply is None:
                    break
                writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def reply(request: Request, response: Response) -> bytes:
    """Return the frame of the response to a request."""
    return b"".join(bytes(part) for part in codec.encode_response(response, request.opaque))


def route_to(address: str) -> Response:
    """Return the route of a topic with one queue at a broker."""
    route = {
        "brokerDatas": [
            {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": address}},
        ],
        "queueDatas": [
            {"brokerName": "b", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
        ],
    }
    return Response(body=json.dumps(route).encode())
