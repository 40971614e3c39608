"""Turns of the ingest over real sockets: order, responses, confirmation, new topics."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from duemq.net import codec
from duemq.net.dispatcher import Dispatcher
from duemq.net.server import RemotingServer
from duemq.send import layout
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.replication.acknowledgement import Missing
from tests.duemq.net.conftest import Run
from tests.support.raw_connection import RawPeer, echo
from tests.support.send_path import SendPath, send_request


class Bench:
    """A server on a front, and one client."""

    def __init__(self, front: SendPath) -> None:
        self.front = front
        self.server = RemotingServer(Dispatcher({11: echo}), front.ingest, clock=FakeClock())

    async def __aenter__(self) -> RawPeer:
        await self.server.start("127.0.0.1", 0)
        self.peer = await RawPeer.connect(self.server.ports[0])
        return self.peer

    async def __aexit__(self, *exc: object) -> None:
        await self.peer.__aexit__()
        await self.server.stop()


async def responses(peer: RawPeer, count: int) -> dict[int, Response]:
    found = [await peer.read_response() for _ in range(count)]
    return {each.opaque: each.response for each in found}


def fast(opaque: int, **changes: Any) -> Request:
    return send_request(opaque=opaque, body=str(opaque).encode(), **changes)


def plain(opaque: int, **changes: Any) -> Request:
    """Return a send that Python must decode, because it has no unique id."""
    return send_request(opaque=opaque, body=str(opaque).encode(), properties="", **changes)


def test_messages_keep_their_order_in_the_kernel_and_in_python(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        ways = [fast, plain, fast, fast, plain, plain, fast]
        async with Bench(front) as peer:
            for opaque in range(200):
                peer.send(ways[opaque % len(ways)](opaque))
                if opaque % 50 == 0:
                    peer.send(Request(11, {}, opaque=1_000 + opaque))
            found = await responses(peer, 204)
        assert front.log.bodies == [str(opaque).encode() for opaque in range(200)]
        offsets = [int((found[n].fields or {})["queueOffset"]) for n in range(200)]
        assert offsets == list(range(200))
        assert len(front.log.batches) < 100

    run(main())


def test_a_request_after_a_send_is_handled_after_the_append(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        requested: list[int] = []

        def count(request: Request) -> Response:
            requested.append(len(front.log.bodies))
            return Response(0, str(len(front.log.bodies)))

        bench = Bench(front)
        bench.server = RemotingServer(Dispatcher({11: count}), front.ingest, clock=FakeClock())
        async with bench as peer:
            for each in (fast(1), Request(11, {}, opaque=2), plain(3), fast(4)):
                peer.send(each)
            found = await responses(peer, 4)
        assert {opaque: response.code for opaque, response in found.items()} == dict.fromkeys(
            (1, 2, 3, 4), 0
        )
        assert requested == [3]

    run(main())


def test_many_connections_share_a_batch(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        async with Bench(front) as first:
            peers = [first] + [await RawPeer.connect(first_port(first)) for _ in range(7)]
            for number, peer in enumerate(peers):
                for opaque in range(20):
                    peer.send(fast(number * 100 + opaque))
            for number, peer in enumerate(peers):
                found = await responses(peer, 20)
                assert sorted(found) == [number * 100 + opaque for opaque in range(20)]
            for peer in peers[1:]:
                await peer.__aexit__()
        assert sum(front.log.batches) == 160

    run(main())


def first_port(peer: RawPeer) -> int:
    port: int = peer.writer.get_extra_info("peername")[1]
    return port


def test_more_messages_than_the_rows_of_a_batch(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        async with Bench(front) as peer:
            for opaque in range(2_500):
                peer.send(fast(opaque))
            assert len(await responses(peer, 2_500)) == 2_500
        assert front.log.bodies == [str(opaque).encode() for opaque in range(2_500)]
        assert max(front.log.batches) <= 1_024

    run(main())


def test_bodies_larger_than_the_staging_buffer(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        front.ingest._state[layout.STATE_BODY_MAX] = 8 << 20
        async with Bench(front) as peer:
            for opaque in range(3):
                peer.send(send_request(opaque=opaque, body=bytes([opaque]) * (3 << 20)))
            found = await responses(peer, 3)
        assert [each.code for each in found.values()] == [0, 0, 0]
        assert [len(body) for body in front.log.bodies] == [3 << 20] * 3

    run(main())


@pytest.mark.parametrize("way", [fast, plain])
def test_a_failing_store_is_reported_with_code_1(
    run: Run, way: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        front = SendPath()
        front.log.failure = OSError("broken disk")
        async with Bench(front) as peer:
            peer.send(way(1))
            found = await responses(peer, 1)
            assert found[1].code == 1
            assert "broken disk" in (found[1].remark or "")
            front.log.failure = None
            peer.send(way(2))
            assert (await responses(peer, 1))[2].code == 0

    run(main())
    assert "appending a batch of 1 messages failed" in caplog.text


# Waiting for the disk.


def test_sync_flush_delays_the_responses(run: Run) -> None:
    async def main() -> None:
        front = SendPath(confirmed=True)
        front.log.syncs = True
        async with Bench(front) as peer:
            peer.send(fast(1))
            peer.send(plain(2))
            peer.send(fast(3, properties="UNIQ_KEY\x01U\x02WAIT\x01false\x02"))
            assert list(await responses(peer, 1)) == [3]
            front.log.may_sync.set()
            assert sorted(await responses(peer, 2)) == [1, 2]

    run(main())


@pytest.mark.parametrize("missing", Missing)
@pytest.mark.parametrize("way", [fast, plain])
def test_each_missing_confirmation_has_a_code(run: Run, way: Any, missing: Missing) -> None:
    async def main() -> None:
        front = SendPath(confirmed=True)
        front.log.syncs, front.log.missing = False, missing
        front.log.may_sync.set()
        async with Bench(front) as peer:
            for opaque in (1, 2):
                peer.send(way(opaque))
            found = await responses(peer, 2)
        code = {Missing.DISK: 10, Missing.NO_REPLICA: 11, Missing.REPLICAS: 12}[missing]
        assert [each.code for each in found.values()] == [code, code]
        assert found[2].fields is not None
        assert found[2].fields["queueOffset"] == "1"
        assert front.log.bodies == [b"1", b"2"]

    run(main())


def test_no_turn_runs_while_too_many_batches_are_unconfirmed(run: Run) -> None:
    async def main() -> None:
        front = SendPath(confirmed=True)
        front.log.syncs = True
        async with Bench(front) as peer:
            await step_by_step(front, peer, 8)
            for opaque in range(8, 400):
                peer.send(send_request(opaque=opaque, body=bytes(9_000)))
            echoed = await RawPeer.connect(first_port(peer))
            async with echoed:
                front.log.may_sync.set()
                assert sorted(await responses(peer, 400)) == list(range(400))
        assert front.log.batches[:8] == [1] * 8

    run(main())


async def step_by_step(front: SendPath, peer: RawPeer, count: int) -> None:
    for opaque in range(count):
        peer.send(fast(opaque))
        while len(front.log.bodies) <= opaque:  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_stop_responds_to_every_received_send(run: Run) -> None:
    async def main() -> None:
        front = SendPath(confirmed=True)
        front.log.syncs = True
        bench = Bench(front)
        peer = await bench.__aenter__()
        await step_by_step(front, peer, 3)
        stop = asyncio.ensure_future(bench.server.stop())
        await asyncio.sleep(0)
        front.log.may_sync.set()
        assert sorted(await responses(peer, 3)) == [0, 1, 2]
        assert await peer.at_end()
        await stop
        await peer.__aexit__()

    run(main())


# New topics.


def test_a_new_topic_keeps_the_order_and_is_registered_before_the_response(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        front.topics.may_report.clear()
        async with Bench(front) as peer:
            for opaque in range(5):
                peer.send(fast(opaque, topic="New"))
            peer.send(fast(5))
            assert sorted(await responses(peer, 5)) == [1, 2, 3, 4, 5]
            front.topics.may_report.set()
            assert list(await responses(peer, 1)) == [0]
        assert front.topics.reported == ["New"]
        assert front.log.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]

    run(main())


def test_only_the_send_to_a_topic_that_may_not_be_created_is_refused(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        async with Bench(front) as peer:
            peer.send(fast(1))
            peer.send(fast(2, topic="New", defaultTopic="other"))
            peer.send(fast(3))
            found = await responses(peer, 3)
        assert {opaque: each.code for opaque, each in found.items()} == {1: 0, 2: 17, 3: 0}
        assert front.log.bodies == [b"1", b"3"]

    run(main())


def test_a_connection_closed_while_it_waits_is_released(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        gate = asyncio.Event()

        async def slow(name: str, **_: Any) -> None:
            await gate.wait()
            raise RequestError(17, "no")

        front.topics.create_for_send = slow
        async with Bench(front) as peer:
            async with await RawPeer.connect(first_port(peer)) as other:
                other.send(fast(1, topic="New"))
                peer.send(fast(2))
                await responses(peer, 1)
            gate.set()
            peer.send(fast(3))
            assert list(await responses(peer, 1)) == [3]

    run(main())


# Bad streams.


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02{]", "JSON header"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x07{]", "header of 7 bytes"),
    ],
)
def test_a_malformed_stream_is_closed_after_its_valid_frames(
    run: Run, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    async def main() -> None:
        front = SendPath()
        async with Bench(front) as peer:
            peer.writer.write(codec.encode_request(fast(1)) + data)
            await peer.at_end()
        assert front.log.bodies == [b"1"]

    with caplog.at_level(logging.WARNING):
        run(main())
    assert reason in caplog.text


def test_an_exception_in_the_python_path_is_reported_with_code_1(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        front = SendPath()
        front.sender._ids = None  # type: ignore[assignment]
        async with Bench(front) as peer:
            peer.send(plain(1))
            peer.send(fast(2))
            found = await responses(peer, 2)
        assert {opaque: each.code for opaque, each in found.items()} == {1: 1, 2: 0}
        assert front.log.bodies == [b"2"]

    run(main())
    assert "request 310 failed" in caplog.text
