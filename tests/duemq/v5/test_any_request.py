"""Random protocol requests: each gets a response, and none causes an internal error."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duemq.broker.broker import Broker
from duemq.v5.protocol import service as api
from tests.duemq.v5.conftest import TOPICS, Run
from tests.support.v5_client import V5Caller, metadata, v5_caller

DEPTH_MAX, CALL_S = 6, 20.0
REQUESTS = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "QueryAssignment",
    "AckMessage",
    "RecallMessage",
    "ForwardMessageToDeadLetterQueue",
    "EndTransaction",
    "ChangeInvisibleDuration",
    "NotifyClientTermination",
)
TEXTS = st.sampled_from(
    [
        *TOPICS,
        "g",
        "",
        " ",
        "%DLQ%g",
        "x" * 300,
        "²",
        "0-0",
        "a\x01b",
        "NS%norm",
        "0 99999999999999 60000 0 0 test 0 0 0",
        "0 99999999999999 60000 999 2 test 0 0 -1",
        f"0 {'9' * 18} {'9' * 18} 0 1 test 0 {'9' * 18} {'9' * 18}",
    ]
) | st.text(max_size=8)
MOSTLY_VALID = st.integers(0, 15).flatmap(lambda n: st.sampled_from("abc") if n else TEXTS)
BITS = {
    FieldDescriptor.TYPE_INT32: 31,
    FieldDescriptor.TYPE_INT64: 63,
    FieldDescriptor.TYPE_UINT32: 32,
}


@st.composite
def messages(draw: st.DrawFn, made: Message, depth: int = 0) -> Message:
    """Fill most fields of a message; most names are valid, so that requests pass validation."""
    descriptor: Descriptor = made.DESCRIPTOR
    for field in descriptor.fields:
        if depth < DEPTH_MAX and draw(st.integers(0, 7)):
            fill(draw, made, field, depth)
    return made


def fill(draw: st.DrawFn, made: Message, field: FieldDescriptor, depth: int) -> None:
    """Fill one field."""
    count = draw(st.integers(0, 3)) if field.is_repeated else 1
    message_type = field.message_type
    if message_type is not None and message_type.GetOptions().map_entry:
        for _ in range(count):
            getattr(made, field.name)[draw(MOSTLY_VALID)] = draw(MOSTLY_VALID)
        return
    for _ in range(count):
        if message_type is not None:
            part = getattr(made, field.name)
            if message_type.name == "Resource" and draw(st.integers(0, 7)):
                named = part.add() if field.is_repeated else part
                named.name = "g" if field.name == "group" else "mixed"
                continue
            draw(messages(part.add() if field.is_repeated else part, depth + 1))
            if not field.is_repeated:
                part.SetInParent()
        elif field.is_repeated:
            getattr(made, field.name).append(draw(scalars(field)))
        else:
            setattr(made, field.name, draw(scalars(field)))


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Return the values of a field."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.sampled_from([*TOPICS, "g"]) if field.name == "name" else MOSTLY_VALID
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(min_size=1, max_size=20)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([each.number for each in field.enum_type.values] + [99])
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return st.floats(width=32)
    least = 0 if field.type == FieldDescriptor.TYPE_UINT32 else -(1 << BITS[field.type])
    return st.integers(0, 5) | st.integers(least, (1 << BITS[field.type]) - 1)


@st.composite
def requests(draw: st.DrawFn) -> Message:
    name = draw(st.sampled_from([*REQUESTS, *["SendMessage"] * 5, "Telemetry"]))
    kind = api.TelemetryCommand if name == "Telemetry" else getattr(api, f"{name}Request")
    return draw(messages(kind()))


async def refusal(caller: V5Caller, request: api.TelemetryCommand) -> str:
    """Return the error text of a telemetry stream; empty: the command succeeded."""
    stream = caller.telemetry()
    await stream.write(request.SerializeToString())
    await stream.done_writing()
    try:
        await stream.read()
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    return ""


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(requests(), min_size=1, max_size=5))
def test_no_request_causes_an_internal_error(run: Run, broker: Broker, made: list[Message]) -> None:
    async def main() -> list[str]:
        async with v5_caller(broker.grpc_port, metadata("any@1")) as caller:
            refusals = []
            for request in made:
                if isinstance(request, api.TelemetryCommand):
                    refusals.append(await refusal(caller, request))
                else:
                    await caller.call(request, timeout_s=CALL_S)  # raises if it ends with INTERNAL
            return refusals

    expected = "process client telemetryCommand failed. "
    assert [each for each in run(main()) if each and not each.startswith(expected)] == []
