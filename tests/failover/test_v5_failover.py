"""v5 clients of a group of three: after the master is killed, every port names the next master.

Its pops continue at the next master: acknowledged messages do not come back, changed invisible
times count, and receipt handles stay valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.failover.failovers import POLL_S, ROUND_S_MAX, running_group
from tests.interop.apache_controller import ApacheController
from tests.support.failover_demo.demo import Group
from tests.support.failover_demo.processes import Member, poll
from tests.support.free_ports import free_ports
from tests.support.remoting_requests import create_topic
from tests.support.v5_client import V5Caller, message, sending, v5_caller

TOPIC, GROUP, MEMBERS, N = "V5Failover", "v5-group", 3, 5
INVISIBLE_S = 60  # longer than a failover on a busy machine
RENEWED_S = INVISIBLE_S + 20
RESOURCES = {"topic": v2.Resource(name=TOPIC)}


def ports_of(queues: list[v2.MessageQueue]) -> set[int]:
    return {each.broker.endpoints.addresses[0].port for each in queues}


async def named_ports(caller: V5Caller) -> set[int]:
    """Return the ports in the route and in the assignments that a port returns."""
    route = await caller.call(api.QueryRouteRequest(**RESOURCES))
    group = v2.Resource(name=GROUP)
    assigned = await caller.call(api.QueryAssignmentRequest(**RESOURCES, group=group))
    queues = [each.message_queue for each in assigned.assignments]
    return ports_of(route.message_queues) | ports_of(queues)


async def until_named(callers: list[V5Caller], port: int) -> None:
    """Wait until each of these ports names only that port."""
    async with asyncio.timeout(ROUND_S_MAX):
        async for _ in poll(POLL_S):
            if all([await named_ports(each) == {port} for each in callers]):
                return


async def send(caller: V5Caller, name: str) -> set[bytes]:
    """Send messages; return their bodies."""
    bodies = {f"{name}-{number}".encode() for number in range(N)}
    for body in bodies:
        sent = await caller.call(sending(message(TOPIC, body)))
        assert sent.status.code == v2.OK, sent
    return bodies


async def receive(caller: V5Caller, count: int) -> set[bytes]:
    """Receive and acknowledge so many messages; return their bodies."""
    bodies: list[bytes] = []
    async with asyncio.timeout(ROUND_S_MAX):
        while len(bodies) < count:
            _, found = await caller.receive(TOPIC, GROUP, batch=count - len(bodies))
            handles = [each.system_properties.receipt_handle for each in found]
            if handles:
                assert await caller.ack(TOPIC, GROUP, *handles) == [v2.OK] * len(handles)
            bodies += [each.body for each in found]
    assert len(set(bodies)) == len(bodies), "received again after its acknowledgement"
    return set(bodies)


async def change(caller: V5Caller, handle: str, seconds: int) -> tuple[int, str]:
    """Change the invisible time of a message; return status and the new handle."""
    request = api.ChangeInvisibleDurationRequest(
        topic=RESOURCES["topic"], group=v2.Resource(name=GROUP), receipt_handle=handle
    )
    request.invisible_duration.FromSeconds(seconds)
    answer = await caller.call(request)
    return answer.status.code, answer.receipt_handle


async def next_master(group: Group, failed: Member) -> Member:
    async with asyncio.timeout(ROUND_S_MAX):
        async for _ in poll(POLL_S):
            master = await group.master()
            if master is not None and master is not failed:
                return master
    raise AssertionError("unreachable")


@asynccontextmanager
async def called_group(
    controller: ApacheController, home: Path
) -> AsyncIterator[tuple[Group, list[V5Caller], list[int], int]]:
    """Run a group with a topic, whose messages GROUP receives from now on.

    Yields the group, callers and ports of its members, and the index of the master.
    """
    ports = free_ports(MEMBERS)
    async with (
        running_group(controller, home, MEMBERS, grpc_ports=ports) as group,
        AsyncExitStack() as stack,
    ):
        callers = [await stack.enter_async_context(v5_caller(port)) for port in ports]
        master = await group.master()
        assert master is not None
        port = int(master.address.rpartition(":")[2])
        await asyncio.to_thread(create_topic, port, TOPIC, attributes="+message.type=NORMAL")
        at = group.members.index(master)
        await until_named(callers, ports[at])
        await callers[at].receive(TOPIC, GROUP)  # the consumer group begins here
        yield group, callers, ports, at


@pytest.mark.extended
@pytest.mark.interop
@pytest.mark.crash
@pytest.mark.finding("3C6")
def test_every_port_names_the_next_master_after_a_failover(tmp_path: Path) -> None:
    async def main(controller: ApacheController) -> None:
        async with called_group(controller, tmp_path) as (group, callers, ports, at):
            first = await send(callers[at], "first")
            assert await receive(callers[at], N) == first
            second = await send(callers[at], "second")
            master = group.members[at]
            await master.process.kill()
            following = group.members.index(await next_master(group, master))
            remaining = [each for index, each in enumerate(callers) if index != at]
            await until_named(remaining, ports[following])
            third = await send(callers[following], "third")
            assert await receive(callers[following], 2 * N) == second | third

    with ApacheController("5.3.3", tmp_path / "controller") as controller:
        asyncio.run(main(controller))


@pytest.mark.extended
@pytest.mark.interop
@pytest.mark.crash
def test_pops_continue_at_the_next_master(tmp_path: Path) -> None:
    """Of five messages, the master has three acknowledgements and changes before it is killed."""

    async def main(controller: ApacheController) -> None:
        async with called_group(controller, tmp_path) as (group, callers, ports, at):
            bodies = sorted(await send(callers[at], "popped"))
            handles: dict[bytes, str] = {}
            async with asyncio.timeout(ROUND_S_MAX):
                while len(handles) < N:
                    _, popped = await callers[at].receive(TOPIC, GROUP, invisible_s=INVISIBLE_S)
                    handles |= {each.body: each.system_properties.receipt_handle for each in popped}
            acked, renewed, later, renewed_later, left = (handles[each] for each in bodies)
            assert await callers[at].ack(TOPIC, GROUP, acked) == [v2.OK]
            status, renewed = await change(callers[at], renewed, RENEWED_S)
            assert status == v2.OK
            master = group.members[at]
            await master.process.kill()
            following = group.members.index(await next_master(group, master))
            remaining = [each for index, each in enumerate(callers) if index != at]
            await until_named(remaining, ports[following])
            caller = callers[following]
            assert await caller.ack(TOPIC, GROUP, later) == [v2.OK]
            status, renewed_later = await change(caller, renewed_later, RENEWED_S)
            assert status == v2.OK
            assert await receive(caller, 1) == {bodies[4]}
            assert (await change(caller, left, 1))[0] != v2.OK, "another consumer has it"
            assert await caller.ack(TOPIC, GROUP, renewed_later) == [v2.OK]
            assert await receive(caller, 1) == {bodies[1]}
            assert (await change(caller, renewed, 1))[0] != v2.OK, "another consumer has it"
            _, popped = await caller.receive(TOPIC, GROUP, poll_ms=2_000)
            assert [each.body for each in popped] == [], "acknowledged messages came back"

    with ApacheController("5.3.3", tmp_path / "controller") as controller:
        asyncio.run(main(controller))
