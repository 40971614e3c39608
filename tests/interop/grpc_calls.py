"""Invalid and unusual calls of gRPC clients, as test cases that return an outcome.

A case makes its calls as one client. Its outcome has the names of the status codes, or the gRPC
status of a call that ended with an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.support.v5_client import V5Caller, message, sending

NORMAL, DELAY, FIFO, TRANSACTION = "refusals-n", "refusals-d", "refusals-f", "refusals-t"
TOPICS: Final = {NORMAL: "NORMAL", DELAY: "DELAY", FIFO: "FIFO", TRANSACTION: "TRANSACTION"}
GROUPS: Final = ("refusals-g", "refusals-other")
GROUP, OTHER = GROUPS
DAY_S: Final = 86_400
TERMS: Final = 10_000
UNARY: Final = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "QueryAssignment",
    "AckMessage",
    "RecallMessage",
    "ForwardMessageToDeadLetterQueue",
    "EndTransaction",
    "NotifyClientTermination",
    "ChangeInvisibleDuration",
)
CALL_S: Final = 20.0


def resource(name: str, namespace: str = "") -> v2.Resource:
    """Return the resource of a name."""
    return v2.Resource(name=name, resource_namespace=namespace)


@dataclass(frozen=True, slots=True)
class GrpcPeer:
    """A server, and the client that calls it.

    Attributes:
        broker: Name of the broker.
        now_ms: The time.
        streams: Telemetry stream of the client, once it is open.
    """

    caller: V5Caller
    broker: str
    now_ms: int
    streams: list[Any] = field(default_factory=list)

    async def register(self) -> None:
        """Send the settings of a consumer."""
        if not self.streams:
            self.streams.append(self.caller.telemetry())
            await self.caller.settings(self.streams[0], consumer(GROUP, NORMAL))

    async def code(self, request: Message, *, name: str = "") -> str:
        """Return the outcome of a unary call."""
        return await self.outcome(self.caller.call(request, name=name, timeout_s=CALL_S))

    async def outcome(self, call: Awaitable[Any]) -> str:
        """Return the outcome of a call."""
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            return f"gRPC {error.code().name}"
        entries = [v2.Code.Name(each.status.code) for each in getattr(response, "entries", ())]
        found = v2.Code.Name(response.status.code)
        return found if entries in ([], [found]) else f"{found}: {' '.join(entries)}"

    async def sent(self, *made: v2.Message) -> str:
        """Return the outcome of a send."""
        return await self.code(sending(*made))

    async def stream(self, *commands: api.TelemetryCommand) -> str:
        """Return the outcome of commands on a telemetry stream."""
        stream = self.caller.telemetry()
        try:
            for each in commands:
                await stream.write(each.SerializeToString())
            response = await stream.read()
        except grpc.aio.AioRpcError as error:
            return f"gRPC {error.code().name}"
        return "EOF" if response is grpc.aio.EOF else v2.Code.Name(response.status.code)

    async def receive(
        self, topic: str = TRANSACTION, group: str = GROUP, *, settings: bool = True, **more: Any
    ) -> tuple[str, list[v2.Message]]:
        """Return the outcome of a receive, and its messages; the settings are sent before.

        Half messages are not received: the topic has none to receive.
        """
        if settings:
            await self.register()
        try:
            status, found = await self.caller.receive(topic, group, **more)
        except grpc.aio.AioRpcError as error:
            return f"gRPC {error.code().name}", []
        return v2.Code.Name(status.code), found

    async def popped(self, body: bytes) -> v2.SystemProperties:
        """Send a message, receive it, and return its system properties."""
        assert await self.sent(message(NORMAL, body)) == "OK"
        for _ in range(10):
            _, found = await self.receive(NORMAL, batch=1, invisible_s=60)
            if found:
                return found[0].system_properties
        raise AssertionError("no message was received")

    async def acknowledged(
        self, *handles: str, topic: str = NORMAL, group: str = GROUP, message_id: str = "m"
    ) -> str:
        """Return the outcome of acknowledgements."""
        request = api.AckMessageRequest(topic=resource(topic), group=resource(group))
        for handle in handles:
            request.entries.add(message_id=message_id, receipt_handle=handle)
        return await self.code(request)

    async def changed(self, handle: str, seconds: int = 30, *, group: str = GROUP) -> str:
        """Return the outcome of a change of an invisible time."""
        request = api.ChangeInvisibleDurationRequest(
            topic=resource(NORMAL), group=resource(group), receipt_handle=handle, message_id="m"
        )
        request.invisible_duration.seconds = seconds
        return await self.code(request)

    async def forwarded(self, handle: str) -> str:
        """Return the outcome of a move to the dead letter topic."""
        request = api.ForwardMessageToDeadLetterQueueRequest(
            topic=resource(NORMAL), group=resource(GROUP), receipt_handle=handle, message_id="m"
        )
        return await self.code(request)


Case = Callable[[GrpcPeer], Awaitable[str]]


def consumer(group: str, topic: str) -> v2.Settings:
    """Return the settings of a simple consumer."""
    settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
    settings.request_timeout.FromSeconds(3)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add(
        topic=resource(topic), expression=v2.FilterExpression(type=v2.TAG, expression="*")
    )
    return settings


def changed(made: v2.Message, **fields: Any) -> v2.Message:
    """Return a message with other system properties."""
    for name, value in fields.items():
        field = getattr(made.system_properties, name)
        if isinstance(value, tuple):
            field.seconds, field.nanos = value
        else:
            setattr(made.system_properties, name, value)
    return made


def in_namespace(made: v2.Message) -> v2.Message:
    """Return a message whose topic is in a namespace."""
    made.topic.resource_namespace = "ns"
    return made


def properties(**found: str) -> v2.Message:
    """Return a message with properties of an application."""
    made = message(NORMAL)
    made.user_properties.update({name.replace("__", "."): value for name, value in found.items()})
    return made


def command(settings: v2.Settings) -> api.TelemetryCommand:
    """Return the command that sends settings."""
    return api.TelemetryCommand(settings=settings)


def producer(*topics: str) -> v2.Settings:
    """Return the settings of a producer."""
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.extend(map(resource, topics))
    return settings


SENDS: Final[dict[str, Callable[[int], list[v2.Message]]]] = {
    "no message": lambda now: [],
    "empty body": lambda now: [message(NORMAL, b"")],
    "body of 4 MiB and a byte": lambda now: [message(NORMAL, bytes((4 << 20) + 1))],
    "empty topic": lambda now: [message("")],
    "topic with a space": lambda now: [message("no topic")],
    "topic of 128 characters": lambda now: [message("t" * 128)],
    "system topic": lambda now: [message("rmq_sys_wheel_timer")],
    "unknown topic": lambda now: [message("refusals-unknown")],
    "mixed topics": lambda now: [message(NORMAL), message(DELAY)],
    "mixed namespaces": lambda now: [message(NORMAL), in_namespace(message(NORMAL))],
    "namespace": lambda now: [in_namespace(message(NORMAL))],
    "two messages": lambda now: [message(NORMAL), message(NORMAL, b"second")],
    "delay in a normal topic": lambda now: [message(NORMAL, deliver_ms=now + 5_000)],
    "message group in a normal topic": lambda now: [message(NORMAL, message_group="a")],
    "transaction in a normal topic": lambda now: [message(NORMAL, message_type=v2.TRANSACTION)],
    "normal in a delay topic": lambda now: [message(DELAY)],
    "normal in a FIFO topic": lambda now: [message(FIFO)],
    "normal in a transaction topic": lambda now: [message(TRANSACTION)],
    "delay of 2 days": lambda now: [message(DELAY, deliver_ms=now + 2 * DAY_S * 1_000)],
    "delay of 4 days": lambda now: [message(DELAY, deliver_ms=now + 4 * DAY_S * 1_000)],
    "delay of 1,000 years": lambda now: [message(DELAY, deliver_ms=now + 365_000 * DAY_S * 1_000)],
    "delay in the past": lambda now: [message(DELAY, deliver_ms=1)],
    "delay before 1970": lambda now: [changed(message(DELAY), delivery_timestamp=(-1_000, 0))],
    "malformed delay": lambda now: [changed(message(DELAY), delivery_timestamp=(1 << 50, -5))],
    "malformed born time": lambda now: [changed(message(NORMAL), born_timestamp=(1 << 50, -5))],
    "transaction recovery of a year": lambda now: [
        changed(
            message(TRANSACTION, message_type=v2.TRANSACTION),
            orphaned_transaction_recovery_duration=(366 * DAY_S, 0),
        )
    ],
    "no message id": lambda now: [message(NORMAL, message_id="")],
    "blank message id": lambda now: [message(NORMAL, message_id=" ")],
    "tag with |": lambda now: [message(NORMAL, tag="a|b")],
    "blank tag": lambda now: [message(NORMAL, tag=" ")],
    "tag with a control character": lambda now: [message(NORMAL, tag="a\x01b")],
    "blank key": lambda now: [message(NORMAL, keys=[" "])],
    "key with a control character": lambda now: [message(NORMAL, keys=["a\x02b"])],
    "message group of 64 characters": lambda now: [message(FIFO, message_group="g" * 64)],
    "blank message group": lambda now: [message(FIFO, message_group=" ")],
    "property of the system": lambda now: [properties(TIMER_OUT_MS="1")],
    "property with a control character": lambda now: [properties(a="\x01")],
    "129 properties": lambda now: [properties(**{f"p{n}": "x" for n in range(129)})],
    "properties of 17 KiB": lambda now: [properties(a="x" * (17 << 10))],
    "key of the protocol in a trace context": lambda now: [
        message(NORMAL, trace_context="a\x02POP_CK\x011")
    ],
}
RECEIVES: Final[dict[str, dict[str, Any]]] = {
    "without settings": {"settings": False},
    "empty topic": {"topic": ""},
    "unknown topic": {"topic": "refusals-unknown"},
    "system topic": {"topic": "rmq_sys_wheel_timer"},
    "empty group": {"group": ""},
    "system group": {"group": "CID_RMQ_SYS_x"},
    "unknown group": {"group": "refusals-unknown"},
    "group of 256 characters": {"group": "g" * 256},
    "invisible for 0 s": {"invisible_s": 0},
    "invisible for 9 s": {"invisible_s": 9},
    "invisible for a year": {"invisible_s": 366 * DAY_S},
    "invisible for -30 s": {"invisible_s": -30},
    "no messages": {"batch": 0},
    "-1 messages": {"batch": -1},
    "1,000 messages": {"batch": 1_000},
    "a poll of -1 s": {"poll_ms": -1_000},
    "a deadline of 1 s": {"timeout_s": 1.0},
    "SQL that does not parse": {"kind": v2.SQL, "expression": "size >"},
    "SQL of types that do not match": {"kind": v2.SQL, "expression": "'a' > 5"},
    "SQL of 10,000 terms": {
        "kind": v2.SQL,
        "expression": " OR ".join(f"a = {n}" for n in range(TERMS)),
    },
    "SQL of 10,000 brackets": {"kind": v2.SQL, "expression": "(" * TERMS + "a = 1" + ")" * TERMS},
    "empty SQL": {"kind": v2.SQL, "expression": ""},
    "10,000 tags": {"expression": "||".join(f"t{n}" for n in range(TERMS))},
    "tags of bars": {"expression": "||||"},
    "unknown kind of filter": {"kind": v2.FILTER_TYPE_UNSPECIFIED, "expression": "a"},
}
HANDLES: Final = {
    "empty": "",
    "text": "x",
    "of three parts": "0 1 2",
    "without numbers": "0 x 60000 0 0 {broker} 0 0 0",
    "expired": "0 1 60000 0 0 {broker} 0 0 999999999999",
    "of another broker": "0 99999999999999 60000 0 0 elsewhere 0 0 0",
    "of no queue": "0 99999999999999 60000 0 0 {broker} 99 0 999999999999",
    "of no pop": "0 99999999999999 60000 0 0 {broker} 0 999999 999999999999",
}


def of_sends() -> Iterator[tuple[str, Case]]:
    """Yield cases of SendMessage."""
    for name, make in SENDS.items():

        async def case(peer: GrpcPeer, make: Callable[[int], list[v2.Message]] = make) -> str:
            return await peer.sent(*make(peer.now_ms))

        yield f"send: {name}", case


def of_receives() -> Iterator[tuple[str, Case]]:
    """Yield cases of ReceiveMessage."""
    for name, options in RECEIVES.items():

        async def case(peer: GrpcPeer, options: dict[str, Any] = options) -> str:
            return (await peer.receive(**options))[0]

        yield f"receive: {name}", case


def of_handles() -> Iterator[tuple[str, Case]]:
    """Yield cases of calls with forged handles."""
    for name, text in HANDLES.items():
        for what in ("acknowledged", "changed", "forwarded"):

            async def case(peer: GrpcPeer, text: str = text, what: str = what) -> str:
                await peer.register()
                outcome: str = await getattr(peer, what)(text.format(broker=peer.broker))
                return outcome

            yield f"{what}: handle {name}", case


def of_malformed() -> Iterator[tuple[str, Case]]:
    """Yield cases of bytes that are no request."""
    for method in UNARY:

        async def case(peer: GrpcPeer, method: str = method) -> str:
            return await peer.outcome(peer.caller.raw(method, b"\xff\xff\xff", timeout_s=CALL_S))

        yield f"malformed: {method}", case
