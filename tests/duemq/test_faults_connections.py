"""Connections that misbehave: slow, broken off, too many, never reading; and the good requests
that share a pipe or a broker with bad ones."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from duemq.broker.broker import Broker
from duemq_common.request import Request
from tests.support.loopback_broker import (
    bodies_of,
    compile_kernels,
    faults_of,
    frame,
    loopback,
    pull_request,
    send,
)
from tests.support.raw_connection import RawPeer
from tests.support.replica_rig import until
from tests.support.send_path import frame_of, send_request

GOOD_COUNT = 100


class House:
    """A broker and its loop."""

    def __init__(self, runner: asyncio.Runner, broker: Broker) -> None:
        self.run = runner.run
        self.broker = broker

    async def connect(self) -> RawPeer:
        return await RawPeer.connect(self.broker.port)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        running = loopback(tmp_path)
        found = House(runner, runner.run(running.__aenter__()))
        runner.run(compile_kernels(found.broker))
        yield found
        runner.run(running.__aexit__(None, None, None))
    assert faults_of(tmp_path) == []


def good(number: int, **changes: str) -> bytes:
    return frame(send_request(body=b"%d" % number, opaque=number, **changes))


BAD = {
    "unknown code": frame(Request(9999, {}, opaque=-1)),
    "missing field": frame(send_request(opaque=-1, topic=None)),
    "illegal topic": frame(send_request(opaque=-1, topic="no topic")),
    "new topic": frame(send_request(opaque=-1, topic="Made")),
    "topic that may not be made": frame(send_request(opaque=-1, topic="X", defaultTopic="none")),
    "queue out of range": frame(send_request(opaque=-1, queueId="77")),
    "bad level": frame(send_request(opaque=-1, properties="DELAY\x01x\x02")),
    "no body": frame(send_request(opaque=-1, body=b"")),
    "oversize body": frame(send_request(opaque=-1, body=b"x" * 100_000)),
    "oversize properties": frame(send_request(opaque=-1, properties="K\x01" + "v" * 40_000)),
    "broken batch": frame(send_request(code=320, opaque=-1, body=b"\0" * 40)),
    "half message without group": frame(
        send_request(opaque=-1, topic="Other", properties="TRAN_MSG\x01true\x02")
    ),
    "garbage heartbeat": frame(Request(34, {}, b"\xff", opaque=-1)),
    "garbage in code 25": frame(Request(25, {}, b"maxMessageSize=-1\n", opaque=-1)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("at", [0, 50, 100])
def test_one_bad_request_among_100_good_ones(house: House, bad: bytes, at: int) -> None:
    frames = [good(number) for number in range(GOOD_COUNT)]
    frames.insert(at, bad)

    async def main() -> dict[int, int]:
        async with await house.connect() as peer:
            peer.writer.write(b"".join(frames))
            responses = [await peer.read_response() for _ in frames]
        return {response.opaque: response.response.code for response in responses}

    codes = house.run(main())
    codes.pop(-1)
    assert codes == dict.fromkeys(range(GOOD_COUNT), 0)
    assert bodies_of(house.broker) == [b"%d" % number for number in range(GOOD_COUNT)]


def test_a_lost_stream_keeps_what_came_before_it(house: House) -> None:
    """What was complete before the broken frame is stored and answered; what follows is not."""
    frames = [good(number) for number in range(GOOD_COUNT)]

    async def main() -> bytes:
        async with await house.connect() as peer:
            peer.writer.write(b"".join(frames[:50]) + struct.pack("!i", -1) + b"".join(frames[50:]))
            return await peer.reader.read()

    responses = house.run(main())
    assert responses.count(b'"queueOffset"') == 50
    assert bodies_of(house.broker) == [b"%d" % number for number in range(50)]


def test_half_a_frame_then_silence_then_the_rest(house: House) -> None:
    async def main() -> None:
        data = good(1)
        async with await house.connect() as slow, await house.connect() as other:
            slow.writer.write(data[: len(data) // 2])
            await slow.writer.drain()
            for number in range(10, 20):
                assert (await send(other, b"%d" % number, opaque=number)).code == 0
            slow.writer.write(data[len(data) // 2 :])
            assert (await slow.read_response()).response.code == 0

    house.run(main())
    assert bodies_of(house.broker) == [*(b"%d" % n for n in range(10, 20)), b"1"]


def test_one_byte_at_a_time(house: House) -> None:
    async def main() -> None:
        async with await house.connect() as peer:
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in good(1) + good(2, properties="KEYS\x01é\x02"):
                peer.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            for number in (1, 2):
                response = await peer.read_response()
                assert (response.opaque, response.response.code) == (number, 0)

    house.run(main())
    assert bodies_of(house.broker) == [b"1", b"2"]


def test_connections_closed_in_the_middle_of_a_frame(house: House) -> None:
    """Cut at every byte of a frame: nothing of it is stored, what came before it is."""
    data = good(2)

    async def main() -> None:
        for cut in range(0, len(data), 3):
            peer = await house.connect()
            peer.writer.write(good(1) + data[:cut])
            assert (await peer.read_response()).response.code == 0
            peer.writer.transport.abort()
        async with await house.connect() as peer:
            assert (await send(peer, b"last", opaque=3)).code == 0

    house.run(main())
    count = len(range(0, len(data), 3))
    assert bodies_of(house.broker) == [b"1"] * count + [b"last"]


def test_a_connection_that_dies_with_requests_in_hand(house: House) -> None:
    """Held pulls, sends and a send that waits for its topic: their peer is gone."""

    async def main() -> None:
        for number in range(20):
            peer = await house.connect()
            hold = pull_request("T", 0, 0, sysFlag="6", suspendTimeoutMillis="600000")
            peer.send(hold)
            peer.writer.write(good(number, topic=f"New{number}") + good(number))
            await peer.writer.drain()
            peer.writer.transport.abort()
        async with await house.connect() as peer:
            assert (await send(peer, b"last", opaque=3)).code == 0
        await until(lambda: not house.broker.connections)
        assert len(house.broker.parts.long_polls) == 0

    house.run(main())
    assert bodies_of(house.broker)[-1] == b"last"


def test_thousands_of_connections_opened_and_closed(house: House) -> None:
    async def one(number: int) -> None:
        peer = await house.connect()
        if number % 3 == 0:
            assert (await send(peer, b"%d" % number, opaque=number)).code == 0
        elif number % 3 == 1:
            peer.writer.write(frame(Request(34, {}, b"{}", opaque=1))[: number % 40])
        if number % 2:
            peer.writer.transport.abort()
        else:
            peer.writer.close()

    async def main() -> None:
        for first in range(0, 3_000, 100):
            await asyncio.gather(*(one(number) for number in range(first, first + 100)))
        await until(lambda: not house.broker.connections)

    house.run(main())
    assert sorted(bodies_of(house.broker)) == sorted(b"%d" % n for n in range(0, 3_000, 3))


def buffered_bytes(broker: Broker) -> int:
    """Return how many bytes wait in the broker's memory for peers to read them."""
    return sum(connection.unsent_bytes for connection in broker.connections)


@pytest.mark.sampled
@pytest.mark.parametrize("what", ["pulls", "sends", "shows"])
def test_a_client_that_never_reads_is_delayed_alone(house: House, what: str) -> None:
    """The broker stops serving it once its answers pile up; memory stays bounded."""
    requests = {
        "pulls": frame(pull_request("T", 1, 0)),
        "sends": frame(send_request(topic="Other", body=b"x" * 100)),
        "shows": frame(Request(26, {}, opaque=1)),
    }
    block = requests[what] * 2_000
    limit = 8 << 20  # write_buffer_bytes_max

    async def main() -> int:
        worst = turns_at_limit = 0
        async with await house.connect() as other:
            for number in range(32):
                assert (await send(other, b"x" * 8_000, opaque=number)).code == 0
            greedy = socket.create_connection(("127.0.0.1", house.broker.port))
            greedy.setblocking(False)
            for _ in range(200):
                with contextlib.suppress(BlockingIOError):
                    greedy.send(block)
                assert (await send(other, b"other", opaque=1)).code == 0
                worst = max(worst, buffered_bytes(house.broker))
                turns_at_limit += worst > limit - (1 << 20)
                if turns_at_limit == 20:
                    break
            greedy.close()
        assert turns_at_limit == 20, "the buffer was not filled"
        return worst

    assert house.run(main()) < limit + (2 << 20)


def test_garbage_of_every_kind_leaves_the_broker_serving(house: House) -> None:
    """Frames of a good send with bytes changed at random, by seed: never a wrong answer code."""
    chance = random.Random(1)

    def bend(data: bytes) -> bytes:
        bent = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            bent[chance.randrange(8, len(bent))] = chance.randrange(256)
        return bytes(bent)

    async def main() -> None:
        for number in range(300):
            async with await house.connect() as peer:
                peer.writer.write(bend(good(number, topic="Other", queueId="0")))
                peer.writer.write_eof()
                await peer.reader.read()
        async with await house.connect() as peer:
            assert (await send(peer, b"last", opaque=3)).code == 0

    house.run(main())
    assert bodies_of(house.broker) == [b"last"]


def test_a_deep_header_among_good_frames_loses_only_its_own_connection(house: House) -> None:
    deep = frame_of(b'{"code":34,"extFields":' + b'{"a":' * 50_000)

    async def main() -> None:
        async with await house.connect() as peer:
            peer.writer.write(good(1) + deep + good(2))
            assert (await peer.read_response()).response.code == 0
            assert await peer.at_end()

    house.run(main())
    assert bodies_of(house.broker) == [b"1"]


CONFIG = {
    "a level that is no time": b"messageDelayLevel=1s soon\n",
    "no level at all": b"messageDelayLevel=\n",
    "a size that is a word": b"maxMessageSize=big\n",
    "a negative size": b"maxMessageSize=-1\n",
    "an unknown flush type": b"flushDiskType=NEVER\n",
    "one good and one bad": b"messageDelayLevel=7s 8s\nmaxMessageSize=big\n",
    "one bad and one good": b"maxMessageSize=big\nmessageDelayLevel=7s 8s\n",
    "good levels and a bad limit of theirs": (
        b"messageDelayLevel=7s 8s\nscheduleAsyncDeliverMaxPendingLimit=-4\n"
    ),
    "a key that may not be changed": b"brokerConfigPath=/tmp/x\nmessageDelayLevel=7s 8s\n",
    "broken UTF-8": b"messageDelayLevel=7s \xff\n",
}


@pytest.mark.parametrize("body", CONFIG.values(), ids=CONFIG.keys())
def test_25_with_bad_values_applies_nothing(house: House, body: bytes) -> None:
    async def main() -> None:
        async with await house.connect() as peer:
            peer.send(Request(26, {}, opaque=1))
            before = (await peer.read_response()).response
            peer.send(Request(25, {}, body, opaque=2))
            refusal = (await peer.read_response()).response
            assert refusal.code in (1, 16)
            assert refusal.remark
            peer.send(Request(26, {}, opaque=3))
            after = (await peer.read_response()).response
            assert bytes(after.body) == bytes(before.body)
            assert after.fields == before.fields
            assert (await send(peer, b"good", opaque=4)).code == 0

    house.run(main())
    levels = house.broker.plugins.plugins["schedule_service"]
    assert levels.history.text.startswith("1s 5s 10s")  # type: ignore[attr-defined]
