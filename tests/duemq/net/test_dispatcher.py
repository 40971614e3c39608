"""Dispatcher: request bytes to response bytes, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.net import codec, layout
from duemq.net.dispatcher import CheckedHandler, Dispatcher, encode_response
from duemq.net.meters import RpcMeter
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response


def at_once(request: Request) -> Response:
    return Response(0, "at once", {"topic": request.fields.get("topic", "")}, request.body)


async def later(request: Request) -> Response:
    await asyncio.sleep(0)
    return Response(0, "later")


async def silent(request: Request) -> None:
    return None


def refused(request: Request) -> Response:
    raise RequestError(17, "no such topic")


async def broken(request: Request) -> Response:
    raise ZeroDivisionError("a bug")


def decoded_frame(data: bytes) -> codec.Frame:
    frame = codec.next_frame(memoryview(data), 0, len(data))
    assert frame is not None
    return frame


async def answered(dispatcher: Dispatcher, request: Request, serialize_type: int) -> bytes:
    found = dispatcher.begin(request)
    response = found if isinstance(found, Response) else await found
    return b"".join(encode_response(request, response, serialize_type))


def exchange(dispatcher: Dispatcher, request: Request, serialize_type: int = 0) -> Response | None:
    sent = codec.encode_request(request, serialize_type=serialize_type)
    received = codec.decode_frame(memoryview(sent), decoded_frame(sent))
    assert isinstance(received, Request)
    data = asyncio.run(answered(dispatcher, received, serialize_type))
    if not data:
        return None
    frame = decoded_frame(data)
    assert (frame.serialize_type, frame.end) == (serialize_type, len(data))
    response = codec.decode_frame(memoryview(data), frame)
    assert isinstance(response, codec.ReceivedResponse)
    assert response.opaque == request.opaque
    return response.response


TABLE: dict[int, Any] = {
    10: at_once,
    11: later,
    12: silent,
    13: refused,
    14: broken,
    15: CheckedHandler(at_once, required=("topic",), body_bytes_max=4),
    16: CheckedHandler(later),
}
CASES = [
    ("at once", Request(10, {}), (0, "at once")),
    ("later", Request(11, {}), (0, "later")),
    ("refused", Request(13, {}), (17, "no such topic")),
    ("a bug", Request(14, {}), (1, "ZeroDivisionError: a bug")),
    ("unknown code", Request(9, {}), (3, "request type 9 not supported")),
    ("a field is missing", Request(15, {}), (1, "the custom field <topic> is null")),
    ("fields are there", Request(15, {"topic": "T"}, b"1234"), (0, "at once")),
    (
        "body too long",
        Request(15, {"topic": "T"}, b"12345"),
        (1, "the body has 5 bytes; the limit is 4"),
    ),
]


@pytest.mark.parametrize("serialize_type", [layout.JSON_TYPE, layout.BINARY_TYPE])
@pytest.mark.parametrize(
    ("request_", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_bytes_in_bytes_out(
    request_: Request, expected: tuple[int, str], serialize_type: int
) -> None:
    request_.opaque = 7
    response = exchange(Dispatcher(TABLE), request_, serialize_type)
    assert response is not None
    assert (response.code, response.remark) == expected


@pytest.mark.parametrize("request_", [Request(10, {}, oneway=True), Request(12, {})])
def test_requests_without_a_response(request_: Request) -> None:
    assert exchange(Dispatcher(TABLE), request_) is None


def test_a_checked_request_is_handled_without_another_check() -> None:
    def refuse_all(request: Request) -> None:
        raise RequestError(16, "no permission")

    dispatcher = Dispatcher(TABLE, access=refuse_all)
    found = dispatcher.begin(Request(10, {}), lambda _: Response(remark="checked"))
    assert isinstance(found, Response)
    assert (found.code, found.remark) == (0, "checked")


def test_access_is_checked_before_any_handler() -> None:
    def refuse_all(request: Request) -> None:
        raise RequestError(16, "no permission")

    dispatcher = Dispatcher(TABLE, access=refuse_all)
    for code in TABLE:
        response = exchange(dispatcher, Request(code, {}))
        assert response is not None
        assert (response.code, response.remark) == (16, "no permission")


def test_sync_handlers_respond_at_once() -> None:
    dispatcher = Dispatcher(TABLE)
    assert [code for code in dispatcher if not dispatcher.responds_at_once(code)] == [
        11,
        12,
        14,
        16,
    ]


def test_a_response_longer_than_a_frame_becomes_an_error() -> None:
    def long(request: Request) -> Response:
        return Response(body=bytes(codec.FRAME_BYTES_MAX))

    response = exchange(Dispatcher({10: long}), Request(10, {}))
    assert response is not None
    assert response.code == 1
    assert "exceeds the limit" in (response.remark or "")


def test_a_code_has_one_handler() -> None:
    dispatcher = Dispatcher({10: at_once})
    with pytest.raises(AssertionError, match="10"):
        dispatcher.add({10: later})


def test_held_codes_are_handled_when_the_wait_ends() -> None:
    async def check() -> None:
        ready = asyncio.Event()

        async def until() -> None:
            await ready.wait()

        dispatcher = Dispatcher({1: at_once, 2: later, 3: at_once})
        dispatcher.delay({1, 2, 4}, until)
        assert [dispatcher.responds_at_once(code) for code in (1, 2, 3)] == [False, False, True]
        assert isinstance(dispatcher.begin(Request(3, {})), Response)
        held = [asyncio.ensure_future(answer(dispatcher, code)) for code in (1, 2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in held)
        ready.set()
        assert await asyncio.gather(*held) == ["at once", "later"]

    async def answer(dispatcher: Dispatcher, code: int) -> str | None:
        found = dispatcher.begin(Request(code, {}))
        assert not isinstance(found, Response)
        response = await found
        assert response is not None
        return response.remark

    asyncio.run(check())


@pytest.mark.parametrize(("code", "result"), [(10, 0), (11, 0), (12, 0), (13, 17), (14, 1)])
def test_the_audit_log_gets_the_code_of_each_response(code: int, result: int) -> None:
    codes = list[int]()
    dispatcher = Dispatcher(TABLE, access=lambda request: codes.append)
    exchange(dispatcher, Request(code, {}))
    assert codes == [result]


@pytest.mark.parametrize(("code", "result"), [(10, 0), (13, 17)])
def test_oneway_requests_are_checked_audited_and_measured_together(code: int, result: int) -> None:
    codes, clock = list[int](), FakeClock()
    meter = RpcMeter(clock)
    dispatcher = Dispatcher(TABLE, access=lambda request: codes.append, meter=meter)
    for _ in range(2):
        dispatcher.handle_oneway(Request(code, {}, oneway=True))
        clock.advance(2)
    assert not list(meter.ms)
    dispatcher.end_oneway()
    assert codes == [result, result]
    [(key, buckets, sum_ms)] = meter.ms
    assert (key, buckets[-1][1], sum_ms) == ((code, result, False, True), 2, 8)
