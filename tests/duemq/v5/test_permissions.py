"""Calls that need a readable or a writable queue of a topic that has none."""

from __future__ import annotations

import pytest

from duemq.broker import Broker
from duemq.ports import PERM_READ, PERM_WRITE
from duemq.registry.topic_config import TopicConfig
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.duemq.v5.conftest import Run
from tests.support.v5_client import message, sending, v5_caller

BOTH = PERM_READ | PERM_WRITE


@pytest.mark.parametrize(
    ("name", "perm", "read_queues", "write_queues", "can_send", "can_receive"),
    [
        ("perm-r", PERM_READ, 1, 1, False, True),
        ("perm-w", PERM_WRITE, 1, 1, True, False),
        ("perm-none", 0, 1, 1, False, False),
        ("no-read-queue", BOTH, 0, 1, True, False),
        ("no-write-queue", BOTH, 1, 0, False, True),
    ],
)
def test_a_topic_without_a_queue_for_the_call_is_forbidden_as_by_apaches_proxy(
    run: Run,
    broker: Broker,
    name: str,
    perm: int,
    read_queues: int,
    write_queues: int,
    can_send: bool,
    can_receive: bool,
) -> None:
    topic = TopicConfig(name=name, read_queues=read_queues, write_queues=write_queues, perm=perm)

    async def main() -> None:
        await broker.parts.topics.ensure_all([topic])
        async with v5_caller(broker.grpc_port) as caller:
            sent = await caller.call(sending(message(name)))
            status, _ = await caller.receive(name, "g-perm")
            assigned = await caller.call(
                api.QueryAssignmentRequest(
                    topic=v2.Resource(name=name), group=v2.Resource(name="g-perm")
                )
            )
            assert sent.status.code == (v2.OK if can_send else v2.FORBIDDEN)
            assert status.code == (v2.MESSAGE_NOT_FOUND if can_receive else v2.FORBIDDEN)
            assert assigned.status.code == (v2.OK if can_receive else v2.FORBIDDEN)
            for refused in [each for each in (sent.status, status) if each.code == v2.FORBIDDEN]:
                assert f"topic {name} has perm {perm}" in refused.message

    run(main())
