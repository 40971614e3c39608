"""ReceiveMessage of an orderly group: repeated deliveries, and the dead letter topic."""

from __future__ import annotations

from duemq.broker import Broker
from duemq.registry.groups import GroupConfig
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.duemq.v5.conftest import Run
from tests.support.v5_client import V5Caller, message, sending, v5_caller

GROUP = "g-orderly"


async def received(caller: V5Caller) -> v2.Message:
    """Return the next message of the group."""
    status, [found] = await caller.receive("fifo", GROUP, batch=1)
    assert status.code == v2.OK
    return found


async def give_back(caller: V5Caller, found: v2.Message) -> None:
    """Make a message visible again now."""
    change = api.ChangeInvisibleDurationRequest(
        topic=v2.Resource(name="fifo"), group=v2.Resource(name=GROUP),
        receipt_handle=found.system_properties.receipt_handle,
    )  # fmt: skip
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
