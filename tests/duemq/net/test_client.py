"""Remoting client against the remoting server."""

from __future__ import annotations

import asyncio
import socket

import pytest

from duemq.net.client import SILENT_CALLS_MAX, RemotingClient
from duemq.net.dispatcher import Dispatcher
from duemq.net.server import RemotingServer
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from tests.duemq.net.conftest import Run
from tests.support.raw_connection import WAIT_S, echo


def test_call_oneway_and_reconnect(run: Run) -> None:
    async def main() -> None:
        heard = asyncio.Event()

        async def listen(request: Request) -> None:
            assert request.oneway
            heard.set()

        async with RemotingServer(Dispatcher({11: echo, 34: listen}), clock=FakeClock()) as server:
            await server.start("127.0.0.1", 0)
            async with RemotingClient(f"127.0.0.1:{server.ports[0]}") as client:
                responses = await asyncio.gather(
                    *(client.call(Request(11, {"n": str(n)})) for n in range(20))
                )
                assert [each.fields for each in responses] == [{"n": str(n)} for n in range(20)]
                await client.send_oneway(Request(34, {}))
                await asyncio.wait_for(heard.wait(), WAIT_S)
                (await client.connect()).close()
                assert (await client.call(Request(11, {}))).code == 0

    run(main())


async def calls_in_silence(client: RemotingClient, count: int) -> None:
    """Make concurrent calls that time out."""
    calls = [client.call(Request(12, {}), timeout_s=0.0) for _ in range(count)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in found} == {TimeoutError}


@pytest.mark.parametrize("at_a_time", [1, 5])
def test_a_connection_without_responses_is_replaced(run: Run, at_a_time: int) -> None:
    """Concurrent calls count once, and a response resets the count."""

    async def never(request: Request) -> Response:
        return await asyncio.get_running_loop().create_future()

    async def main() -> None:
        handlers = Dispatcher({11: echo, 12: never})
        async with RemotingServer(handlers, clock=FakeClock()) as server:
            await server.start("127.0.0.1", 0)
            async with RemotingClient(f"127.0.0.1:{server.ports[0]}") as client:
                first = await client.connect()
                for _ in range(SILENT_CALLS_MAX - 1):
                    await calls_in_silence(client, at_a_time)
                assert (await client.call(Request(11, {}))).code == 0
                for _ in range(SILENT_CALLS_MAX - 1):
                    await calls_in_silence(client, at_a_time)
                assert await client.connect() is first
                await calls_in_silence(client, at_a_time)
                assert first.closed
                assert (await client.call(Request(11, {}))).code == 0
                assert await client.connect() is not first

    run(main())


def test_calls_of_a_lost_connection_do_not_count_for_the_next(run: Run) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def late(request: Request) -> Response:
            await ended.wait()
            return Response(0)

        handlers = Dispatcher({12: late})
        async with RemotingServer(handlers, clock=FakeClock()) as server:
            await server.start("127.0.0.1", 0)
            async with RemotingClient(f"127.0.0.1:{server.ports[0]}") as client:
                for _ in range(SILENT_CALLS_MAX - 1):
                    await calls_in_silence(client, 1)
                (await client.connect()).close()
                second = await client.connect()
                await calls_in_silence(client, 1)
                assert not second.closed
                ended.set()

    run(main())


def test_stop_ends_a_call_without_a_response(run: Run) -> None:
    async def main() -> None:
        never, received = asyncio.Event(), asyncio.Event()

        async def silent(request: Request) -> Response:
            received.set()
            await never.wait()
            return Response()

        async with RemotingServer(Dispatcher({12: silent}), clock=FakeClock()) as server:
            await server.start("127.0.0.1", 0)
            client = RemotingClient(f"127.0.0.1:{server.ports[0]}")
            call = asyncio.create_task(client.call(Request(12, {}), timeout_s=600.0))
            await asyncio.wait_for(received.wait(), WAIT_S)
            client.stop()
            with pytest.raises(OSError, match="closed the connection"):
                await asyncio.wait_for(call, WAIT_S)
            with pytest.raises(ConnectionAbortedError, match="was stopped"):
                await client.call(Request(12, {}))
            await client.close()
            never.set()

    run(main())


def test_stop_ends_a_connection_attempt(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as full:  # its queue of connections is full: a further one waits
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(3)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            client = RemotingClient(f"127.0.0.1:{full.getsockname()[1]}")
            call = asyncio.create_task(client.call(Request(12, {}), timeout_s=600.0))
            for _ in range(10):  # the attempt begins; the result is the same before it
                await asyncio.sleep(0)
            client.stop()
            with pytest.raises(ConnectionAbortedError, match="was stopped"):
                await asyncio.wait_for(call, WAIT_S)
            for each in waiting:
                each.close()

    run(main())


def test_client_answers_the_server(run: Run) -> None:
    async def main() -> None:
        async def call_back(request: Request) -> Response:
            assert request.peer is not None
            return await request.peer.call(Request(307, {}), timeout_s=WAIT_S)

        async def info(request: Request) -> Response:
            return Response(0, "running")

        async with RemotingServer(Dispatcher({34: call_back}), clock=FakeClock()) as server:
            await server.start("127.0.0.1", 0)
            async with RemotingClient(f"127.0.0.1:{server.ports[0]}", {307: info}) as client:
                assert (await client.call(Request(34, {}))).remark == "running"

    run(main())


def test_a_refused_connection_is_an_error(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as bound:  # not listening, and no other program's
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            async with RemotingClient(f"127.0.0.1:{port}") as client:
                with pytest.raises(OSError, match="Connect"):
                    await client.call(Request(11, {}))

    run(main())
