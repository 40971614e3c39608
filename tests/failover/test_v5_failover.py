"""v5 clients of a group of three: after the master is killed, every port names the next master."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
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


async def next_master(group: Group, failed: Member) -> Member:
    async with asyncio.timeout(ROUND_S_MAX):
        async for _ in poll(POLL_S):
            master = await group.master()
            if master is not None and master is not failed:
                return master
    raise AssertionError("unreachable")


@pytest.mark.extended
@pytest.mark.interop
@pytest.mark.crash
@pytest.mark.finding("3C6")
def test_every_port_names_the_next_master_after_a_failover(tmp_path: Path) -> None:
    async def main(controller: ApacheController) -> None:
        ports = free_ports(MEMBERS)
        async with (
            running_group(controller, tmp_path, MEMBERS, grpc_ports=ports) as group,
            AsyncExitStack() as stack,
        ):
            callers = [await stack.enter_async_context(v5_caller(port)) for port in ports]
            master = await group.master()
            assert master is not None
            at = group.members.index(master)
            port = int(master.address.rpartition(":")[2])
            await asyncio.to_thread(create_topic, port, TOPIC, attributes="+message.type=NORMAL")
            await until_named(callers, ports[at])
            await callers[at].receive(TOPIC, GROUP)  # the group begins here
            first = await send(callers[at], "first")
            assert await receive(callers[at], N) == first
            second = await send(callers[at], "second")
            await master.process.kill()
            following = group.members.index(await next_master(group, master))
            remaining = [each for index, each in enumerate(callers) if index != at]
            await until_named(remaining, ports[following])
            third = await send(callers[following], "third")
            assert await receive(callers[following], 2 * N) == second | third

    with ApacheController("5.3.3", tmp_path / "controller") as controller:
        asyncio.run(main(controller))
