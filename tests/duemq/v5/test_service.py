"""The twelve methods of MessagingService, called on a running broker with grpcio."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.duemq.v5.conftest import Run
from tests.support.v5_client import V5Caller, message, metadata, sending, v5_caller

FIRST_S = 60


def resource(name: str) -> v2.Resource:
    return v2.Resource(name=name)


def consumer(group: str, topic: str) -> v2.Settings:
    settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add(
        topic=resource(topic), expression=v2.FilterExpression(type=v2.TAG, expression="*")
    )
    return settings


def producer(*topics: str) -> v2.Settings:
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.extend(map(resource, topics))
    return settings


def now_ms(broker: Broker) -> int:
    return broker.clock.now_ms()


async def one(caller: V5Caller, topic: str, group: str, **more: Any) -> v2.Message:
    """Return the next message of a group; polls end after some seconds."""
    for _ in range(FIRST_S):
        status, found = await caller.receive(topic, group, batch=1, **more)
        if found:
            assert status.code == v2.OK
            return found[0]
        assert status.code == v2.MESSAGE_NOT_FOUND
    raise AssertionError("no message came")


async def with_body(caller: V5Caller, topic: str, body: bytes) -> v2.Message:
    """Return the message with a body; groups of other tests have other messages of the topic."""
    while (found := await one(caller, topic, f"g-{body.decode()}")).body != body:
        pass
    return found


@pytest.mark.finding("3C3")
def test_a_delayed_message_is_received_after_its_time_and_acknowledged(
    run: Run, broker: Broker
) -> None:
    async def main() -> None:
        async with v5_caller(broker.grpc_port) as caller:
            due_ms = now_ms(broker) + 300
            sent = message(
                "delay", b"later", deliver_ms=due_ms, tag="t", keys=["k1", "k2"], born_host="h"
            )
            sent.user_properties["a"] = "ä"
            response = await caller.call(sending(sent))
            assert response.status.code == v2.OK, response
            [entry] = response.entries
            assert entry.message_id == sent.system_properties.message_id
            assert entry.transaction_id == entry.message_id  # as in Apache's proxy
            assert entry.recall_handle
            found = await one(caller, "delay", "g-delay")
            received = now_ms(broker)
            system = found.system_properties
            assert received >= due_ms
            assert (found.body, dict(found.user_properties)) == (b"later", {"a": "ä"})
            assert (system.tag, list(system.keys)) == ("t", ["k1", "k2"])
            assert system.message_type == v2.DELAY
            assert system.delivery_timestamp.ToMilliseconds() == due_ms
            assert (system.delivery_attempt, system.born_host) == (1, "h")
            handle = system.receipt_handle
            assert await caller.ack("delay", "g-delay", handle) == [v2.OK]
            assert await caller.ack("delay", "g-delay", handle) == [v2.OK]  # repeated: as Apache's

    run(main())


def test_delays_are_limited_by_the_broker(run: Run, broker: Broker) -> None:
    async def main() -> list[v2.Status]:
        async with v5_caller(broker.grpc_port) as caller:
            found = []
            for days in (2, 400_000):
                due_ms = now_ms(broker) + days * 86_400_000
                response = await caller.call(sending(message("delay", deliver_ms=due_ms)))
                found.append(response.status)
            return found

    two_days, thousand_years = run(main())
    assert two_days.code == v2.OK  # Apache's proxy: one day at most
    assert thousand_years.code == v2.ILLEGAL_DELIVERY_TIME, thousand_years


def test_a_recalled_message_is_not_delivered(run: Run, broker: Broker) -> None:
    async def main() -> None:
        async with v5_caller(broker.grpc_port) as caller:
            sent = message("delay", deliver_ms=now_ms(broker) + 60_000)
            [entry] = (await caller.call(sending(sent))).entries
            request = api.RecallMessageRequest(
                topic=resource("delay"), recall_handle=entry.recall_handle
            )
            done = await caller.call(request)
            assert (done.status.code, done.message_id) == (v2.OK, entry.message_id)
            again = await caller.call(request)
            assert again.status.code == v2.OK  # as request 370
            request.topic.name = "norm"
            assert (
                await caller.call(request)
            ).status.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

    run(main())


@pytest.mark.parametrize("topic", ["prio", "mixed", "delay"])
def test_a_delayed_message_keeps_its_priority(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> v2.Message:
        async with v5_caller(broker.grpc_port) as caller:
            sent = message(topic, b"two", priority=2, deliver_ms=now_ms(broker) + 100)
            assert (await caller.call(sending(sent))).status.code == v2.OK
            return await with_body(caller, topic, b"two")

    system = run(main()).system_properties
    assert (system.priority, system.message_type) == (2, v2.DELAY)


@pytest.mark.finding("3C5")
@pytest.mark.parametrize("topic", ["prio", "mixed"])
def test_a_priority_reaches_the_consumer(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> tuple[v2.Message, list[int]]:
        async with v5_caller(broker.grpc_port) as caller:
            sent = message(topic, b"seven", priority=7)
            assert (await caller.call(sending(sent))).status.code == v2.OK
            found = await with_body(caller, topic, b"seven")
            route = await caller.call(api.QueryRouteRequest(topic=resource(topic)))
            return found, list(route.message_queues[0].accept_message_types)

    found, accepted = run(main())
    assert found.system_properties.priority == 7
    assert found.system_properties.message_type == v2.PRIORITY
    assert (v2.PRIORITY in accepted) == (topic == "prio")  # as Apache's proxy reports the types


def test_a_message_group_stays_in_one_queue_and_in_order(run: Run, broker: Broker) -> None:
    async def main() -> list[bytes]:
        async with v5_caller(broker.grpc_port) as caller:
            for n in range(5):
                sent = message("fifo", b"%d" % n, message_group="a")
                assert (await caller.call(sending(sent))).status.code == v2.OK
            _, found = await caller.receive("fifo", "g-fifo")
            assert {each.system_properties.message_group for each in found} == {"a"}
            assert {each.system_properties.message_type for each in found} == {v2.FIFO}
            return [each.body for each in found]

    assert run(main()) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("resolution", "arrives"), [(v2.COMMIT, True), (v2.ROLLBACK, False)], ids=["commit", "rollback"]
)
def test_a_transaction_gets_the_resolution_of_its_producer(
    run: Run, broker: Broker, resolution: int, arrives: bool
) -> None:
    async def main() -> bool:
        async with v5_caller(broker.grpc_port) as caller:
            sent = message("tran", b"half", message_type=v2.TRANSACTION)
            [entry] = (await caller.call(sending(sent))).entries
            end = api.EndTransactionRequest(
                topic=resource("tran"),
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=resolution,
                source=v2.SOURCE_SERVER_CHECK,
            )
            assert (await caller.call(end)).status.code == v2.OK
            _, found = await caller.receive("tran", f"g-tran-{resolution}")
            ids = {each.user_properties["__transactionId__"] for each in found}
            assert ids == {each.system_properties.message_id for each in found}
            return entry.message_id in ids

    assert run(main()) is arrives


def test_a_producer_receives_checks_of_an_unresolved_transaction(run: Run, broker: Broker) -> None:
    async def main() -> None:
        async with v5_caller(broker.grpc_port, metadata("requested@1")) as caller:
            stream = caller.telemetry()
            await caller.settings(stream, producer("tran"))
            sent = message("tran", b"open", message_type=v2.TRANSACTION)
            [entry] = (await caller.call(sending(sent))).entries
            while True:
                command = await asyncio.wait_for(stream.read(), FIRST_S)
                requested = command.recover_orphaned_transaction_command
                if requested.message.system_properties.message_id == entry.message_id:
                    break  # before: other tests' half messages
            assert requested.message.body == b"open"
            end = api.EndTransactionRequest(
                topic=resource("tran"),
                message_id=entry.message_id,
                transaction_id=requested.transaction_id,
                resolution=v2.ROLLBACK,
                source=v2.SOURCE_SERVER_CHECK,
            )
            assert (await caller.call(end)).status.code == v2.OK

    run(main())


def test_effective_settings_include_the_values_of_the_broker(run: Run, broker: Broker) -> None:
    async def main() -> tuple[v2.Settings, v2.Settings]:
        async with v5_caller(broker.grpc_port, metadata("s@1")) as caller:
            stream = caller.telemetry()
            found = await caller.settings(stream, consumer("g-set", "norm"))
            heartbeat = api.HeartbeatRequest(
                group=resource("g-set"), client_type=v2.SIMPLE_CONSUMER
            )
            assert (await caller.call(heartbeat)).status.code == v2.OK
            assert broker.parts.clients.members("g-set") == ["s@1"]
            end = api.NotifyClientTerminationRequest(group=resource("g-set"))
            assert (await caller.call(end)).status.code == v2.OK
            assert broker.parts.clients.members("g-set") == []
            assert (await caller.call(heartbeat)).status.code == v2.UNRECOGNIZED_CLIENT_TYPE
            return found, await caller.settings(caller.telemetry(), producer("norm"))

    of_consumer, of_producer = run(main())
    assert not of_consumer.metric.on
    assert not of_consumer.subscription.fifo
    assert of_consumer.subscription.receive_batch_size == 32
    assert of_consumer.backoff_policy.max_attempts == 17
    assert len(of_consumer.backoff_policy.customized_backoff.next) == 18
    assert of_producer.publishing.max_body_size == 20_000
    assert of_producer.publishing.validate_message_type
    assert of_producer.backoff_policy.exponential_backoff.multiplier == 2


def test_routes_have_the_address_that_the_client_used(run: Run, broker: Broker) -> None:
    async def main() -> tuple[Any, Any, Any]:
        async with v5_caller(broker.grpc_port) as caller:
            request = api.QueryRouteRequest(topic=resource("delay"))
            request.endpoints.scheme = v2.DOMAIN_NAME
            request.endpoints.addresses.add(host="broker.example", port=443)
            assigned = api.QueryAssignmentRequest(
                topic=resource("delay"), group=resource("g"), endpoints=request.endpoints
            )
            unknown = api.QueryRouteRequest(topic=resource("nowhere"))
            return (
                await caller.call(request),
                await caller.call(assigned),
                await caller.call(unknown),
            )

    route, assignment, unknown = run(main())
    [queue] = route.message_queues
    assert (queue.id, queue.permission, queue.broker.name) == (0, v2.READ_WRITE, "test")
    assert list(queue.accept_message_types) == [v2.DELAY]
    [address] = queue.broker.endpoints.addresses
    assert (address.host, address.port) == ("broker.example", 443)
    assert [each.message_queue.id for each in assignment.assignments] == [-1]
    assert unknown.status.code == v2.TOPIC_NOT_FOUND


def test_a_changed_invisible_time_counts_from_the_change(run: Run, broker: Broker) -> None:
    async def main() -> None:
        async with v5_caller(broker.grpc_port) as caller:
            await caller.call(sending(message("norm", b"again")))
            first = (await one(caller, "norm", "g-change")).system_properties
            change = api.ChangeInvisibleDurationRequest(
                topic=resource("norm"),
                group=resource("g-change"),
                receipt_handle=first.receipt_handle,
            )
            change.invisible_duration.FromMilliseconds(0)
            for suspend, attempt in ((True, 1), (False, 2)):
                change.suspend = suspend
                changed = await caller.call(change)
                assert changed.status.code == v2.OK
                again = (await one(caller, "norm", "g-change")).system_properties
                assert again.message_id == first.message_id
                assert again.delivery_attempt == attempt
                change.receipt_handle = again.receipt_handle
            change.receipt_handle = first.receipt_handle
            old = await caller.call(change)
            assert old.status.code in (v2.OK, v2.INVALID_RECEIPT_HANDLE, v2.INTERNAL_SERVER_ERROR)
            assert await caller.ack("norm", "g-change", again.receipt_handle) == [v2.OK]
            change.invisible_duration.FromSeconds(366 * 86_400)
            assert (await caller.call(change)).status.code == v2.ILLEGAL_INVISIBLE_TIME

    run(main())


def test_a_forwarded_message_is_in_the_dead_letter_topic(run: Run, broker: Broker) -> None:
    async def main() -> None:
        async with v5_caller(broker.grpc_port) as caller:
            await caller.call(sending(message("mixed", b"dead")))
            found = (await one(caller, "mixed", "g-dead")).system_properties
            forward = api.ForwardMessageToDeadLetterQueueRequest(
                topic=resource("mixed"),
                group=resource("g-dead"),
                receipt_handle=found.receipt_handle,
                message_id=found.message_id,
            )
            assert (await caller.call(forward)).status.code == v2.OK
            assert broker.parts.store.queue_bounds("%DLQ%g-dead", 0) == (0, 1)
            without = " ".join(found.receipt_handle.split(" ")[:8])
            forward.receipt_handle = without
            assert (await caller.call(forward)).status.code == v2.INVALID_RECEIPT_HANDLE

    run(main())


def test_receive_filters_by_tag_and_by_sql(run: Run, broker: Broker) -> None:
    async def main() -> tuple[list[bytes], list[bytes], int]:
        async with v5_caller(broker.grpc_port) as caller:
            for tag in ("x", "y"):
                sent = message("mixed", tag.encode(), tag=tag)
                sent.user_properties["size"] = "9" if tag == "y" else "1"
                await caller.call(sending(sent))
            _, tagged = await caller.receive("mixed", "g-tag", expression="x")
            _, wide = await caller.receive(
                "mixed", "g-sql", kind=v2.SQL, expression="size > 5 AND TAGS = 'y'"
            )
            bad, _ = await caller.receive("mixed", "g-sql", kind=v2.SQL, expression="size >")
            return [each.body for each in tagged], [each.body for each in wide], bad.code

    assert run(main()) == ([b"x"], [b"y"], v2.ILLEGAL_FILTER_EXPRESSION)


def test_sends_of_one_turn_are_one_batch(run: Run, broker: Broker, batch_sizes: list[int]) -> None:
    async def main() -> Any:
        async with v5_caller(broker.grpc_port) as caller:
            return await caller.call(sending(*(message("norm", b"%d" % n) for n in range(20))))

    response = run(main())
    assert [each.status.code for each in response.entries] == [v2.OK] * 20
    assert max(batch_sizes) == 20


def test_acknowledgements_of_one_call_are_one_record_per_checkpoint(
    run: Run, broker: Broker, batch_sizes: list[int]
) -> None:
    async def main() -> tuple[list[int], int, int]:
        async with v5_caller(broker.grpc_port) as caller:
            group = "g-acks"
            await caller.receive("norm", group, invisible_s=600)  # those of other tests
            await caller.call(sending(*(message("norm", b"%d" % n) for n in range(20))))
            _, found = await caller.receive("norm", group)
            handles = [each.system_properties.receipt_handle for each in found]
            expired = " ".join(["0", "1", *handles[0].split(" ")[2:]])
            batch_sizes.clear()
            codes = await caller.ack("norm", group, *handles[:10], expired, "x", *handles[10:])
            return codes, len(handles), len({each.split(" ")[6] for each in handles})

    codes, received, checkpoints = run(main())
    assert received == 20
    assert codes[10:12] == [v2.INVALID_RECEIPT_HANDLE, v2.INTERNAL_SERVER_ERROR]
    assert codes[:10] + codes[12:] == [v2.OK] * 20
    assert batch_sizes == [checkpoints]
