"""Allocation of queues, and what a consumer does with the queues it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from duemq.client import Client, ConsumerSettings, MessageQueue, PullConsumer
from duemq.client.handlers import HandlerPool
from duemq.client.process_queue import FlowLimits, ProcessQueue
from duemq.client.rebalance import Rebalance, allocated
from duemq.pop.allocation import STRATEGIES

QUEUE = MessageQueue("T", "b", 0)


@given(st.integers(0, 40), st.integers(1, 12))
def test_queues_are_allocated_as_by_the_broker(queues: int, members: int) -> None:
    ids = [f"10.0.0.{number}@1#a" for number in range(members)]
    shares = [allocated(range(queues), ids[::-1], member) for member in sorted(ids)]
    for index, share in enumerate(shares):
        assert share == list(STRATEGIES["AVG"](index, queues, members))
    assert [queue for share in shares for queue in share] == list(range(queues))


def test_an_unknown_member_gets_no_queues() -> None:
    assert allocated(range(4), ["a", "b"], "c") == []


class SlowOffsets:
    """Offsets whose first commit ends late.

    Attributes:
        committed_offsets: Offsets in the order in which the commits ended.
    """

    def __init__(self) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()
        self.committed_offsets: list[int] = []

    async def committed(self, queue: MessageQueue) -> int | None:
        return None

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        if not self.begun.is_set():
            self.begun.set()
            await self.release.wait()
        self.committed_offsets += offsets.values()
        return set(offsets)


def test_the_last_commit_waits_for_the_one_before(run: Callable[..., Any]) -> None:
    """Apache's brokers handle the requests of a connection in parallel."""

    async def retry(*_: object) -> None:
        raise AssertionError("no handler failed")

    async def main() -> None:
        async with Client(broker="127.0.0.1:1") as client:
            settings, offsets = ConsumerSettings(commit_s=0), SlowOffsets()
            limits = FlowLimits(settings)
            pool = HandlerPool(settings, {}, limits, retry)
            reader = PullConsumer(group="g", client=client)
            rebalance = Rebalance(client, reader, settings, {}, offsets, limits, pool)
            queue = rebalance.queues[QUEUE] = ProcessQueue(QUEUE, None, 0, None)
            commits = asyncio.create_task(rebalance.repeat_commits())
            await offsets.begun.wait()
            queue.next_offset = 10
            commits.cancel()
            closing = asyncio.create_task(rebalance.close())
            await asyncio.sleep(0)
            offsets.release.set()
            await closing
            assert offsets.committed_offsets == [0, 10]

    run(main())
