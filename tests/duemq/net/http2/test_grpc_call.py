"""One gRPC call: bytes become messages, within limits; what is sent, and how the call ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.net.http2.grpc_call import PREFIX_BYTES, GrpcCall, GrpcLimits, GrpcMethod
from duemq.net.http2.grpc_status import GrpcError, GrpcStatus, trailers_of

LIMITS = GrpcLimits(message_bytes_max=100, messages_unread_max=3)


class Connection:
    """Counts what calls hold."""

    address = ("10.0.0.7", 1)

    def __init__(self) -> None:
        self.held_bytes = self.kept_bytes = 0
        self.outputs = 0

    def schedule_output(self, call: GrpcCall) -> None:
        self.outputs += 1

    def count_bytes(self, more: int) -> None:
        self.held_bytes += more

    def hold(self, call: GrpcCall, more: int) -> None:
        self.kept_bytes += more


async def nothing(call: GrpcCall) -> None:
    """Return at once."""


def call(*, streams: bool = True, **metadata: bytes) -> GrpcCall:
    found = {name.replace("_", "-").encode(): value for name, value in metadata.items()}
    return GrpcCall(Connection(), 1, GrpcMethod("Test", nothing, streams=streams), found)


def framed(*messages: bytes) -> bytes:
    return b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages)


def received(found: GrpcCall) -> list[bytes]:
    """Return all messages of a call whose client has ended."""

    async def main() -> list[bytes]:
        messages = []
        while (data := await found.receive()) is not None:
            messages.append(data)
        return messages

    found.end()
    return asyncio.run(main())


@given(st.lists(st.binary(max_size=20), max_size=3), st.integers(1, 40))
def test_messages_are_the_same_however_their_bytes_are_cut(messages: list[bytes], n: int) -> None:
    found, data = call(), framed(*messages)
    for first in range(0, len(data), n):
        found.feed(data[first : first + n], LIMITS)
    assert received(found) == messages
    assert found.buffered_bytes == 0


@pytest.mark.parametrize(
    ("data", "streams", "status"),
    [
        (b"\1\0\0\0\1x", True, GrpcStatus.UNIMPLEMENTED),  # compressed
        (b"\0\0\0\0\x65", True, GrpcStatus.RESOURCE_EXHAUSTED),  # 101 bytes follow
        (b"\0\xff\xff\xff\xff", True, GrpcStatus.RESOURCE_EXHAUSTED),
        (framed(b"a", b"b", b"c", b"d"), True, GrpcStatus.RESOURCE_EXHAUSTED),
        (framed(b"a", b"b"), False, GrpcStatus.RESOURCE_EXHAUSTED),
    ],
    ids=["compressed", "101 bytes", "4 GiB", "four unread", "two in a unary call"],
)
def test_what_is_too_much_ends_the_call(data: bytes, streams: bool, status: int) -> None:
    with pytest.raises(GrpcError) as caught:
        call(streams=streams).feed(data, LIMITS)
    assert caught.value.status == status


def test_a_handler_that_reads_has_room_for_more() -> None:
    async def main() -> None:
        found = call()
        for n in range(10):
            found.feed(framed(b"%d" % n), LIMITS)
            assert await found.receive() == b"%d" % n

    asyncio.run(main())


@pytest.mark.parametrize("cut", range(PREFIX_BYTES + 4))
def test_half_a_message_is_no_message(cut: int) -> None:
    found = call()
    found.feed(framed(b"half")[:cut], LIMITS)
    assert found.buffered_bytes == cut
    assert received(found) == []


def test_a_handler_waits_for_the_next_message() -> None:
    async def main() -> None:
        found = call()
        waiting = asyncio.create_task(found.receive())
        await asyncio.sleep(0)
        found.feed(framed(b"late"), LIMITS)
        assert await waiting == b"late"
        waiting = asyncio.create_task(found.receive())
        await asyncio.sleep(0)
        found.stop()  # a stream ends
        assert await waiting is None

    asyncio.run(main())


def test_a_stop_leaves_a_unary_call_as_it_is() -> None:
    found = call(streams=False)
    found.stop()
    assert not found.is_ended


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (b"5S", 5.0),
        (b"250m", 0.25),
        (b"1M", 60.0),
        (b"2H", 7_200.0),
        (b"7u", 7e-6),
        (b"99999999n", 0.099999999),
        (b"999999999S", None),  # nine digits
        (b"-1S", None),
        (b"5", None),
        (b"S", None),
        (b"", None),
        ("²S".encode(), None),
    ],
)
def test_the_deadline_of_a_client(timeout: bytes, seconds: float | None) -> None:
    found = call(grpc_timeout=timeout)
    found.begin(100.0)
    expected = None if seconds is None else pytest.approx(100.0 + seconds)
    assert found.deadline_s == expected


@pytest.mark.parametrize(("streams", "kept_bytes"), [(False, 3), (True, 0)])
def test_messages_are_counted_until_they_are_sent_or_received(
    streams: bool, kept_bytes: int
) -> None:
    async def main() -> None:
        connection = Connection()
        found = GrpcCall(connection, 1, GrpcMethod("Test", nothing, streams=streams), {})
        found.send(b"answer")
        assert (bytes(found.unsent), connection.held_bytes) == (framed(b"answer"), 11)
        found.feed(framed(b"abc"), LIMITS)
        await found.receive()
        assert connection.held_bytes == 8  # the connection has counted the 3 when they came
        assert connection.kept_bytes == kept_bytes

    asyncio.run(main())


def test_only_the_first_status_counts() -> None:
    found = call()
    found.finish(GrpcStatus.OK)
    found.finish(GrpcStatus.INTERNAL, "late")
    found.send(b"late")
    assert found.trailers == ((b"grpc-status", b"0"),)
    assert not found.unsent
    assert found.is_finished


def test_a_client_that_has_gone_cancels_the_handler() -> None:
    async def main() -> None:
        found = call()
        found.task = asyncio.create_task(asyncio.Event().wait())
        found.cancel()
        found.finish(GrpcStatus.OK)
        assert found.trailers is None
        with pytest.raises(asyncio.CancelledError):
            await found.task

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("", ()),
        ("plain text", ((b"grpc-message", b"plain text"),)),
        ("100% ä\n", ((b"grpc-message", b"100%25 %C3%A4%0A"),)),
        ("x" * 5_000, ((b"grpc-message", b"x" * 1_024),)),
    ],
)
def test_the_text_of_a_status(text: str, written: tuple[Any, ...]) -> None:
    assert trailers_of(GrpcStatus.INTERNAL, text) == ((b"grpc-status", b"13"), *written)


def test_metadata_that_is_no_text_is_replaced() -> None:
    found = call(x_mq_client_id=b"\xff")
    assert (found.text(b"x-mq-client-id"), found.text(b"missing")) == ("�", "")


@pytest.mark.parametrize(("sent_bytes", "count"), [(0, 1), (10, 1), (11, 0)])
def test_a_client_that_has_gone_before_all_was_sent_is_reported_once(
    sent_bytes: int, count: int
) -> None:
    found, reports = call(), list[bool]()
    found.on_unsent = lambda: reports.append(found.is_lost)
    found.send(b"answer")
    del found.unsent[:sent_bytes]
    found.cancel()
    found.cancel()
    assert reports == [True] * count
