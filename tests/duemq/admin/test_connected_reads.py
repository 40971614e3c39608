"""Requests that only read: they end when their connection closes, and no other request does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from duemq.admin.connected_reads import ConnectedReads
from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.duemq.net.test_connection import MemoryTransport, receive
from tests.support.fakes import FakePeer

READ, WRITE = 11, 12


def test_a_read_ends_with_its_connection() -> None:
    async def main() -> None:
        ended = list[int]()

        async def wait(request: Request) -> Response:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(request.code)
            return Response()

        dispatcher = Dispatcher({READ: wait, WRITE: wait})
        dispatcher.wrap({READ, 13}, ConnectedReads().handler)
        made = Connection(dispatcher, limits=RemotingLimits())
        made.connection_made(MemoryTransport())
        for opaque, code in enumerate((READ, WRITE, READ)):
            receive(made, codec.encode_request(Request(code, {}, opaque=opaque)))
        await asyncio.sleep(0)
        assert made.requests_in_flight == 3
        made.connection_lost(None)
        await asyncio.sleep(0)
        assert ended == [READ, READ]
        await made.finish(0)
        assert ended == [READ, READ, WRITE]

    asyncio.run(main())


async def at_once(request: Request) -> Response:
    await asyncio.sleep(0)
    return Response()


def test_the_connection_of_a_read_that_has_ended_may_close() -> None:
    async def main() -> None:
        handler, peer = ConnectedReads().handler(at_once), FakePeer()
        for each in (peer, None):
            assert await handler(Request(READ, {}, peer=each)) == Response()
        peer.close()
        await asyncio.sleep(0)  # a cancellation would be raised here

    asyncio.run(main())


def test_a_read_of_a_closed_connection_does_not_begin() -> None:
    peer = FakePeer()
    peer.close()
    with pytest.raises(RequestError, match="the connection is closed"):
        asyncio.run(ended(ConnectedReads().handler(at_once)(Request(READ, {}, peer=peer))))


async def ended(work: Awaitable[object]) -> None:
    await work
