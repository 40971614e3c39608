"""Calls of MessagingService that the broker refuses, with their codes."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from duemq.broker.broker import Broker
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.duemq.v5.conftest import Run
from tests.duemq.v5.test_service import consumer, producer
from tests.support.v5_client import V5Caller, message, metadata, refused_with, sending, v5_caller


async def refusal(broker: Broker, request: Any) -> int:
    async with v5_caller(broker.grpc_port) as caller:
        return int((await caller.call(request)).status.code)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (message("norm", b""), v2.MESSAGE_BODY_EMPTY),
        (message("norm", b"x" * 20_001), v2.MESSAGE_BODY_TOO_LARGE),
        (message("norm", deliver_ms=1), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("delay"), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("norm", message_id=" "), v2.ILLEGAL_MESSAGE_ID),
        (message("norm", tag="a|b"), v2.ILLEGAL_MESSAGE_TAG),
        (message("norm", tag="a\x01b"), v2.ILLEGAL_MESSAGE_TAG),
        (message("norm", keys=["a\x02b"]), v2.ILLEGAL_MESSAGE_KEY),
        (message("fifo", message_group="g" * 64), v2.ILLEGAL_MESSAGE_GROUP),
        (message("norm", trace_context="a\x02POP_CK\x011"), v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message("norm", priority=1), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("prio"), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("prio", deliver_ms=1), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("prio", priority=-1), v2.BAD_REQUEST),
        (message("mixed", lite_topic="l"), v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message("no topic"), v2.ILLEGAL_TOPIC),
        (message("rmq_sys_wheel_timer"), v2.ILLEGAL_TOPIC),
        (message("nowhere"), v2.TOPIC_NOT_FOUND),
    ],
)
def test_a_message_that_cannot_be_stored_gets_its_code(
    run: Run, broker: Broker, made: v2.Message, code: int
) -> None:
    assert run(refusal(broker, sending(made))) == code


@pytest.mark.parametrize(
    "name", ["TIMER_OUT_MS", "_SYS_MSG_PRIORITY_", "__LITE_TOPIC", "ORIGIN_GROUP"]
)
def test_system_properties_cannot_be_set(run: Run, broker: Broker, name: str) -> None:
    made = message("norm")
    made.user_properties[name] = "1"
    assert run(refusal(broker, sending(made))) == v2.ILLEGAL_MESSAGE_PROPERTY_KEY
    for n in range(129):
        made.user_properties[f"p{n}"] = "x"
    assert run(refusal(broker, sending(made))) == v2.MESSAGE_PROPERTIES_TOO_LARGE


@pytest.mark.parametrize(
    ("handle", "code"),
    [
        ("", v2.INTERNAL_SERVER_ERROR),
        ("0 1 2", v2.INTERNAL_SERVER_ERROR),
        ("0 x 60000 0 0 test 0 0 0", v2.INTERNAL_SERVER_ERROR),
        ("0 1 60000 0 0 test 0 0 0", v2.INVALID_RECEIPT_HANDLE),  # expired in 1970
        ("0 99999999999999 60000 0 0 other 0 0 0", v2.INVALID_RECEIPT_HANDLE),
        ("0 99999999999999 60000 0 0 test 7 0 0", v2.INTERNAL_SERVER_ERROR),
        ("0 99999999999999 60000 0 0 test 0 999999 0", v2.INTERNAL_SERVER_ERROR),
    ],
)
def test_a_forged_receipt_handle_gets_its_code(
    run: Run, broker: Broker, handle: str, code: int
) -> None:
    async def main() -> list[int]:
        async with v5_caller(broker.grpc_port) as caller:
            return await caller.ack("norm", "g-forged", handle)

    assert run(main()) == [code]


@pytest.mark.parametrize("invisible_s", [0, 9, 366 * 86_400])
def test_an_invisible_time_out_of_range_is_refused(
    run: Run, broker: Broker, invisible_s: int
) -> None:
    async def main() -> int:
        async with v5_caller(broker.grpc_port) as caller:
            status, _ = await caller.receive("norm", "g-time", invisible_s=invisible_s)
            return int(status.code)

    assert run(main()) == v2.ILLEGAL_INVISIBLE_TIME


def test_a_call_without_a_client_id_is_refused(run: Run, broker: Broker) -> None:
    async def main() -> tuple[int, int]:
        async with v5_caller(broker.grpc_port, metadata("")) as caller:
            sent = await caller.call(sending(message("norm")))
            status, _ = await received(caller)
            return int(sent.status.code), int(status.code)

    async def received(caller: V5Caller) -> tuple[v2.Status, list[v2.Message]]:
        method = caller.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            response_deserializer=api.ReceiveMessageResponse.FromString,
        )
        [only] = [each async for each in method(b"", metadata=caller.fields)]
        return only.status, []

    assert run(main()) == (v2.CLIENT_ID_REQUIRED, v2.CLIENT_ID_REQUIRED)


def test_a_telemetry_stream_without_a_client_id_is_answered_once(run: Run, broker: Broker) -> None:
    async def main() -> tuple[int, Any]:
        async with v5_caller(broker.grpc_port, metadata("")) as caller:
            stream = caller.telemetry()
            await stream.write(api.TelemetryCommand(settings=producer("norm")).SerializeToString())
            return (await stream.read()).status.code, await stream.read()

    assert run(main()) == (v2.CLIENT_ID_REQUIRED, grpc.aio.EOF)


def test_a_malformed_message_ends_the_call(run: Run, broker: Broker) -> None:
    async def main() -> None:
        async with v5_caller(broker.grpc_port) as caller:
            for name in ("SendMessage", "AckMessage", "QueryRoute"):
                with refused_with(grpc.StatusCode.UNKNOWN):
                    await caller.raw(name, b"\xff\xff\xff")
            with refused_with(grpc.StatusCode.UNIMPLEMENTED):
                await caller.raw("PullMessage", b"")
            stream = caller.telemetry()
            await stream.write(b"\xff\xff\xff")
            with refused_with(grpc.StatusCode.UNKNOWN):
                await stream.read()
            stream = caller.telemetry()
            await stream.write(api.TelemetryCommand(settings=v2.Settings()).SerializeToString())
            with refused_with(grpc.StatusCode.INVALID_ARGUMENT):
                await stream.read()
            assert (await caller.call(sending(message("norm")))).status.code == v2.OK

    run(main())


@pytest.mark.parametrize(
    "kind",
    [v2.CLIENT_TYPE_UNSPECIFIED, v2.PRODUCER, v2.PULL_CONSUMER, v2.LITE_PUSH_CONSUMER, 99],
    ids=str,
)
def test_a_client_of_a_type_that_cannot_subscribe_is_refused_with_the_reason(
    run: Run, broker: Broker, kind: Any
) -> None:
    async def main() -> grpc.aio.AioRpcError:
        async with v5_caller(broker.grpc_port, metadata(f"type-{kind}@1")) as caller:
            settings = consumer("g-type", "norm")
            settings.client_type = kind
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await caller.settings(caller.telemetry(), settings)
            return refused.value

    error = run(main())
    assert error.code() is grpc.StatusCode.INTERNAL  # as Apache's proxy
    assert "the types of consumers are PUSH_CONSUMER, SIMPLE_CONSUMER" in error.details()


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [(v2.TAG, "||", "contains no tag"), (v2.SQL, "", "the SQL expression is empty")],
)
def test_a_filter_without_a_condition_is_the_fault_of_the_client(
    run: Run, broker: Broker, kind: v2.FilterType, text: str, why: str
) -> None:
    async def main() -> grpc.aio.AioRpcError:
        async with v5_caller(broker.grpc_port, metadata("filter@1")) as caller:
            settings = consumer("g-filter", "norm")
            expression = settings.subscription.subscriptions[0].expression
            expression.type, expression.expression = kind, text
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await caller.settings(caller.telemetry(), settings)
            return refused.value

    error = run(main())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # as Apache's proxy
    assert why in error.details()
