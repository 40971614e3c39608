"""ReceiveMessage: repeated deliveries, the dead letter topic, tags with the same hash."""

from __future__ import annotations

import pytest

from duemq.broker.broker import Broker
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq_common.topics import PERM_READ
from tests.duemq.v5.conftest import Run
from tests.support.v5_client import V5Caller, message, sending, typed_topic, v5_caller

GROUP = "g-orderly"
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
