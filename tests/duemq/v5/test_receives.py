"""ReceiveMessage: repeated deliveries, the dead letter topic, tags with the same hash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.net.http2.grpc_call import GrpcCall, GrpcMethod
from duemq.net.http2.grpc_status import GrpcError
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.v5.acknowledgements import AckCalls
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.config import V5Config
from duemq.v5.context import CallContext
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.receives import ReceiveCalls, messages_of
from duemq.v5.renewals import CLOSED_CLIENT_INVISIBLE_MS
from duemq.v5.status import V5Error
from duemq_common.topics import PERM_READ
from tests.duemq.v5.conftest import Run
from tests.support.v5_client import V5Caller, message, sending, typed_topic, v5_caller

GROUP = "g-orderly"
CONFIG = V5Config(host="h", port=1, body_bytes_max=9_999, type_check=True, permission=6)
POLL_MS = 100  # of calls that find no message


async def received(caller: V5Caller) -> v2.Message:
    """Return the next message of the group."""
    status, [found] = await caller.receive("fifo", GROUP, batch=1)
    assert status.code == v2.OK
    return found


async def give_back(caller: V5Caller, found: v2.Message) -> None:
    """Make a message visible again now."""
    change = api.ChangeInvisibleDurationRequest(
        topic=v2.Resource(name="fifo"),
        group=v2.Resource(name=GROUP),
        receipt_handle=found.system_properties.receipt_handle,
    )
    change.invisible_duration.FromMilliseconds(0)
    assert (await caller.call(change)).status.code == v2.OK


def test_attempts_of_an_orderly_group_are_counted_up_to_the_dead_letter_topic(
    run: Run, broker: Broker
) -> None:
    async def main() -> list[tuple[bytes, int]]:
        group = GroupConfig(name=GROUP, orderly=True, retry_times_max=2)
        await broker.parts.groups.update([group])
        seen = []
        async with v5_caller(broker.grpc_port) as caller:
            for body in (b"first", b"second"):
                sent = message("fifo", body, message_group="a")
                assert (await caller.call(sending(sent))).status.code == v2.OK
            for _ in range(3):
                found = await received(caller)
                seen.append((found.body, found.system_properties.delivery_attempt))
                await give_back(caller, found)
            status, _ = await caller.receive("fifo", GROUP, batch=1)
            assert status.code == v2.MESSAGE_NOT_FOUND  # as Apache's proxy 5.3.3
            found = await received(caller)
            seen.append((found.body, found.system_properties.delivery_attempt))
            return seen

    assert run(main()) == [(b"first", 1), (b"first", 2), (b"first", 3), (b"second", 1)]
    assert broker.parts.store.queue_bounds(f"%DLQ%{GROUP}", 0) == (0, 1)


@pytest.mark.usefixtures("short_polls")
@pytest.mark.parametrize("orderly", [False, True], ids=["in any order", "orderly"])
def test_a_message_of_another_tag_with_the_same_hash_is_not_received(
    run: Run, broker: Broker, orderly: bool
) -> None:
    topic, group = f"same-hash-{orderly}", f"g-same-hash-{orderly}"  # "Aa" and "BB" collide

    async def main() -> list[tuple[bytes, str]]:
        await typed_topic(broker, topic, "NORMAL")
        await broker.parts.groups.update([GroupConfig(name=group, orderly=orderly)])
        async with v5_caller(broker.grpc_port) as caller:
            # New groups start at the end.
            await caller.receive(topic, group, expression="Aa || c", poll_ms=POLL_MS)
            for tag in ("Aa", "BB", "c", "AaBB"):
                sent = message(topic, tag.encode(), tag=tag)
                assert (await caller.call(sending(sent))).status.code == v2.OK
            _, found = await caller.receive(topic, group, expression="Aa || c")
            handles = [each.system_properties.receipt_handle for each in found]
            assert await caller.ack(topic, group, *handles) == [v2.OK] * 2
            # Orderly: the rest is acknowledged.
            await caller.receive(topic, group, expression="Aa || c", poll_ms=POLL_MS)
            return [(each.body, each.system_properties.tag) for each in found]

    assert run(main()) == [(b"Aa", "Aa"), (b"c", "c")]
    assert broker.parts.offsets.query(group, topic, 0) in ({4} if orderly else {2, 3, 4})


@pytest.mark.usefixtures("short_polls")
def test_a_message_that_cannot_become_a_dead_letter_is_logged_and_blocks_no_other(
    run: Run, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = "no-dead-letter", "g-no-dead-letter"
    read_only = TopicConfig(name=f"%DLQ%{group}", read_queues=1, write_queues=1, perm=PERM_READ)

    async def main() -> list[bytes]:
        await typed_topic(broker, topic, "NORMAL")
        await broker.parts.topics.ensure_all([read_only])
        await broker.parts.groups.update([GroupConfig(name=group, retry_times_max=0)])
        async with v5_caller(broker.grpc_port) as caller:
            await caller.receive(topic, group, poll_ms=POLL_MS)
            await caller.call(sending(message(topic, b"first")))
            _, [first] = await caller.receive(topic, group)
            change = api.ChangeInvisibleDurationRequest(
                topic=v2.Resource(name=topic),
                group=v2.Resource(name=group),
                receipt_handle=first.system_properties.receipt_handle,
            )
            change.invisible_duration.FromMilliseconds(0)
            await caller.call(change)
            status, _ = await caller.receive(topic, group, poll_ms=POLL_MS)
            assert status.code == v2.MESSAGE_NOT_FOUND
            await caller.call(sending(message(topic, b"second")))
            _, found = await caller.receive(topic, group)
            return [each.body for each in found]

    assert run(main()) == [b"second"]
    assert f"group {group} of topic {topic} keeps a message that it cannot receive" in caplog.text


@pytest.mark.finding("3S7")
def test_a_receive_from_a_retry_topic_is_refused(run: Run, broker: Broker) -> None:
    group, topic = "g-retries", "%RETRY%g-retries"

    async def main() -> None:
        found = TopicConfig(name=topic, read_queues=1, write_queues=1)
        await broker.parts.topics.ensure_all([found])
        await broker.parts.groups.update([GroupConfig(name=group)])
        async with v5_caller(broker.grpc_port) as caller:
            assert (await caller.call(sending(message(topic)))).status.code == v2.OK
            status, messages = await caller.receive(topic, group)
            assert (status.code, messages) == (v2.ILLEGAL_TOPIC, [])
            assert "retry topic" in status.message

    run(main())


class Connection:
    """Connection of a call whose client reads nothing."""

    address = ("10.0.0.7", 1)

    def schedule_output(self, call: GrpcCall) -> None: ...

    def count_bytes(self, more: int) -> None: ...

    def hold(self, call: GrpcCall, more: int) -> None: ...

    def start(self, call: GrpcCall, work: Any) -> None: ...

    def fail(self, call: GrpcCall, error: BaseException) -> None: ...


class Receiving:
    """Calls of ReceiveMessage without a connection, for a group that starts at the end."""

    def __init__(self, broker: Broker, topic: str) -> None:
        parts = broker.parts
        requests, clock = BrokerRequests(parts.dispatcher, None), parts.store.clock
        name = parts.identity.broker_name
        self.topic, self.group, self.broker = topic, f"g-{topic}", broker
        self.acks = AckCalls(requests, name, clock, clock.now_ms)
        find_group = parts.groups.find_or_create
        self.calls = ReceiveCalls(
            requests, self.acks, parts.topics.find, find_group, name, clock, lambda: CONFIG
        )
        self.call = GrpcCall(Connection(), 1, GrpcMethod("Receive", self.receive), {})
        self.deadline_s: float | None = None

    async def begin(self, *bodies: bytes) -> None:
        """Create the topic and the group, and send messages."""
        await typed_topic(self.broker, self.topic, "NORMAL")
        await self.broker.parts.groups.update([GroupConfig(name=self.group, retry_times_max=1)])
        async with v5_caller(self.broker.grpc_port) as caller:
            await caller.receive(self.topic, self.group, poll_ms=POLL_MS)
            for body in bodies:
                assert (await caller.call(sending(message(self.topic, body)))).status.code == v2.OK

    async def receive(self, call: GrpcCall) -> None:
        """Serve a call."""
        request = api.ReceiveMessageRequest(
            group=v2.Resource(name=self.group),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=self.topic), id=-1),
            batch_size=32,
            auto_renew=True,
        )
        context = CallContext("c@1", call.address, "PYTHON", "5.1.2", None, self.deadline_s)
        client = V5Client(context, lambda client, request: None)
        await self.calls.receive(call, context, client, request)

    async def visible_again(self, count: int) -> list[bytes]:
        """Renew invisible times; return the messages that another client receives then."""
        await self.acks.renewals.renew()
        assert not self.acks.renewals.table
        bodies: list[bytes] = []
        async with v5_caller(self.broker.grpc_port) as caller:
            for _ in range(10):
                if len(bodies) == count:
                    break
                _, found = await caller.receive(self.topic, self.group, poll_ms=5_000)
                bodies += [each.body for each in found]
        return bodies


@pytest.fixture
def shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let released messages be visible at once."""
    assert CLOSED_CLIENT_INVISIBLE_MS == 1_000
    monkeypatch.setattr("duemq.v5.renewals.CLOSED_CLIENT_INVISIBLE_MS", 1)


@pytest.mark.usefixtures("short_polls", "shortly")
def test_messages_whose_response_is_not_sent_are_visible_again(run: Run, broker: Broker) -> None:
    """They were invisible, and renewed, for three hours."""

    async def main() -> None:
        receiving = Receiving(broker, "not-sent")
        await receiving.begin(b"first", b"second")
        await receiving.receive(receiving.call)
        assert len(receiving.acks.renewals.table) == 2
        receiving.call.cancel()
        assert await receiving.visible_again(2) == [b"first", b"second"]

    run(main())


@pytest.mark.usefixtures("short_polls")
def test_messages_whose_response_was_sent_are_renewed(run: Run, broker: Broker) -> None:
    async def main() -> None:
        receiving = Receiving(broker, "is-sent")
        await receiving.begin(b"first")
        await receiving.receive(receiving.call)
        receiving.call.unsent.clear()
        receiving.call.cancel()
        [renewal] = receiving.acks.renewals.table.values()
        assert not renewal.is_ended

    run(main())


@pytest.mark.usefixtures("short_polls", "shortly")
def test_messages_found_after_the_deadline_are_visible_again(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        receiving = Receiving(broker, "too-late")
        await receiving.begin(b"first")
        receiving.deadline_s = asyncio.get_running_loop().time() + 60

        def late(*arguments: Any) -> Any:
            monkeypatch.setattr(CallContext, "remaining_ms", lambda context: 0)
            return messages_of(*arguments)

        monkeypatch.setattr("duemq.v5.receives.messages_of", late)
        with pytest.raises(GrpcError, match="DEADLINE_EXCEEDED"):
            await receiving.receive(receiving.call)
        monkeypatch.undo()
        monkeypatch.setattr("duemq.v5.renewals.CLOSED_CLIENT_INVISIBLE_MS", 1)
        assert await receiving.visible_again(1) == [b"first"]

    run(main())


@pytest.mark.usefixtures("short_polls", "shortly")
def test_a_call_cancelled_while_a_dead_letter_is_forwarded_returns_the_others(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        receiving = Receiving(broker, "forwarding")
        await receiving.begin(b"first", b"second")
        begun = asyncio.Event()

        async def forward(*arguments: Any) -> v2.Status:
            begun.set()
            await asyncio.Event().wait()
            raise V5Error(v2.INTERNAL_ERROR, "not reached")

        monkeypatch.setattr(receiving.acks, "forward_handle", forward)
        records = list[Any]()

        def dead_last(*arguments: Any) -> Any:
            for record, text in messages_of(*arguments):
                records.append(record)
                record.reconsume_times = 2 * (len(records) == 2)
                yield record, text

        monkeypatch.setattr("duemq.v5.receives.messages_of", dead_last)
        task = asyncio.ensure_future(receiving.receive(receiving.call))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        monkeypatch.setattr("duemq.v5.renewals.CLOSED_CLIENT_INVISIBLE_MS", 1)
        assert await receiving.visible_again(1) == [b"first"]

    run(main())
