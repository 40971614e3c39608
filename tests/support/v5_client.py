"""v5 client for tests: calls of MessagingService with grpcio, and builders of messages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from duemq.broker.broker import Broker
from duemq.registry.topic_config import TopicConfig
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.service import SERVICE

CALL_S = 60.0
DATE_TIME = "20261125T060000Z"
_NUMBERS = count()


def metadata(client_id: str = "c@1", **more: str) -> list[tuple[str, str]]:
    """Return the metadata of a client; underscores become hyphens, None omits a field."""
    fields = {
        "x-mq-client-id": client_id,
        "x-mq-language": "PYTHON",
        "x-mq-client-version": "5.1.2",
    }
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return [(name, value) for name, value in fields.items() if value]


def signed(access_key: str, secret: str, client_id: str = "c@1") -> list[tuple[str, str]]:
    """Return the metadata of a client with credentials."""
    digits = hmac.new(secret.encode(), DATE_TIME.encode(), hashlib.sha1).hexdigest().upper()
    text = (
        f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={digits}"
    )
    return metadata(client_id, x_mq_date_time=DATE_TIME, authorization=text)


class V5Caller:
    """Client of one gRPC channel."""

    def __init__(self, channel: Any, fields: list[tuple[str, str]]) -> None:
        self.channel, self.fields = channel, fields

    async def call(self, request: Message, *, name: str = "", timeout_s: float = CALL_S) -> Any:
        """Make a unary call; its name defaults to that of the request. Return the response."""
        name = name or type(request).__name__.removesuffix("Request")
        return await self.raw(name, request.SerializeToString(), timeout_s=timeout_s)

    async def raw(self, name: str, data: bytes, *, timeout_s: float = CALL_S) -> Any:
        """Call a method with encoded bytes and return the response."""
        response = getattr(api, f"{name}Response")
        method = self.channel.unary_unary(SERVICE + name, response_deserializer=response.FromString)
        return await method(data, metadata=self.fields, timeout=timeout_s)

    async def receive(
        self, topic: str, group: str, *, timeout_s: float = CALL_S, batch: int = 32, **more: Any
    ) -> tuple[v2.Status, list[v2.Message]]:
        """Return the status and the messages of ReceiveMessage."""
        request = api.ReceiveMessageRequest(
            group=v2.Resource(name=group),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=-1),
            filter_expression=v2.FilterExpression(
                type=more.pop("kind", v2.TAG), expression=more.pop("expression", "*")
            ),
            batch_size=batch,
            auto_renew=more.pop("auto_renew", False),
        )
        if not request.auto_renew:
            request.invisible_duration.FromSeconds(more.pop("invisible_s", 30))
        request.long_polling_timeout.FromMilliseconds(more.pop("poll_ms", 5_000))
        assert not more
        method = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            response_deserializer=api.ReceiveMessageResponse.FromString,
        )
        work = method(request.SerializeToString(), metadata=self.fields, timeout=timeout_s)
        responses = [each async for each in work]
        [status] = [each.status for each in responses if each.HasField("status")]
        assert responses[-1].HasField("delivery_timestamp")
        return status, [each.message for each in responses if each.HasField("message")]

    async def ack(self, topic: str, group: str, *handles: str) -> list[int]:
        """Acknowledge messages; return the code of each."""
        request = api.AckMessageRequest(
            topic=v2.Resource(name=topic), group=v2.Resource(name=group)
        )
        for handle in handles:
            request.entries.add(message_id="m", receipt_handle=handle)
        answer = await self.call(request)
        return [each.status.code for each in answer.entries] or [answer.status.code]

    def telemetry(self) -> Any:
        """Return a telemetry stream."""
        method = self.channel.stream_stream(
            SERVICE + "Telemetry", response_deserializer=api.TelemetryCommand.FromString
        )
        return method(metadata=self.fields)

    async def settings(self, stream: Any, settings: v2.Settings) -> v2.Settings:
        """Send settings and return the effective settings."""
        await stream.write(api.TelemetryCommand(settings=settings).SerializeToString())
        answer = await asyncio.wait_for(stream.read(), CALL_S)
        assert isinstance(answer, api.TelemetryCommand)
        return answer.settings


@asynccontextmanager
async def v5_caller(
    port: int, fields: list[tuple[str, str]] | None = None, *, authority: bytes | None = None
) -> AsyncIterator[V5Caller]:
    """Yield a client of a port; TLS is used if a trusted certificate is given."""
    address = f"127.0.0.1:{port}"
    if authority is None:
        channel = grpc.aio.insecure_channel(address)
    else:
        channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority))
    async with channel:
        yield V5Caller(channel, metadata() if fields is None else fields)


async def typed_topic(broker: Broker, name: str, kind: str, *, queues: int = 1) -> None:
    """Create a topic that accepts messages of a type."""
    topic = TopicConfig(
        name=name, read_queues=queues, write_queues=queues, attributes={"message.type": kind}
    )
    await broker.parts.topics.ensure_all([topic])


def message(topic: str, body: bytes = b"body", **system: Any) -> v2.Message:
    """Return a message with a unique id."""
    made = v2.Message(topic=v2.Resource(name=topic), body=body)
    made.system_properties.message_id = f"01{next(_NUMBERS):032X}"
    made.system_properties.body_encoding = v2.IDENTITY
    if (deliver_ms := system.pop("deliver_ms", None)) is not None:
        made.system_properties.delivery_timestamp.FromMilliseconds(deliver_ms)
    for name, value in system.items():
        if isinstance(value, list):
            getattr(made.system_properties, name).extend(value)
        else:
            setattr(made.system_properties, name, value)
    return made


def sending(*messages: v2.Message) -> api.SendMessageRequest:
    """Return the request that sends messages."""
    return api.SendMessageRequest(messages=messages)


@contextmanager
def refused_with(status: Any) -> Iterator[None]:
    """Check that a call ends with a gRPC status."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        yield
    assert refused.value.code() == status, refused.value
