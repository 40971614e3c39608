"""Allocation of queues, and what a consumer does with the queues it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.client import Client, ConsumerSettings, MessageQueue, PullConsumer
from duemq.client.handlers import HandlerPool
from duemq.client.locks import QueueLocks
from duemq.client.process_queue import FlowLimits, ProcessQueue
from duemq.client.queue_offsets import QueueOffsets
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

    async def main() -> None:
        async with Client(broker="127.0.0.1:1") as client:
            offsets = SlowOffsets()
            rebalance = rebalance_of(client, ConsumerSettings(commit_s=0), offsets)
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


def rebalance_of(client: Client, settings: ConsumerSettings, offsets: QueueOffsets) -> Rebalance:
    """Return a rebalance whose handlers do not fail."""

    async def retry(*_: object) -> None:
        raise AssertionError("no handler failed")

    limits = FlowLimits(settings)
    pool = HandlerPool(settings, {}, limits, retry)
    reader = PullConsumer(group="g", client=client)
    return Rebalance(client, reader, settings, {QUEUE.topic: None}, offsets, limits, pool)


class EarlierOffsets:
    """Offsets that are read a minute after they were requested."""

    async def committed(self, queue: MessageQueue) -> int | None:
        loop = asyncio.get_running_loop()
        time = loop.time
        loop.time = lambda: time() + 60.0
        return 0

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        return set(offsets)


def test_a_lock_lasts_from_its_request_on(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker counts from then on; another consumer may have the lock afterwards."""

    requests: list[MessageQueue] = []

    async def route(*_: object) -> SimpleNamespace:
        return SimpleNamespace(read_queues=[QUEUE])

    async def lock(*_: object) -> tuple[set[MessageQueue], set[MessageQueue]]:
        requests.append(QUEUE)
        return {QUEUE} if len(requests) == 1 else set(), set()  # the broker is away afterwards

    async def main() -> None:
        async with Client(broker="127.0.0.1:1") as client:
            rebalance = rebalance_of(client, ConsumerSettings(ordered=True), EarlierOffsets())

            async def members(*_: object) -> list[str]:
                return [client.client_id]

            monkeypatch.setattr(client, "refresh_route", route)
            monkeypatch.setattr(rebalance, "_members", members)
            monkeypatch.setattr(QueueLocks, "lock", lock)
            assert await rebalance.turn()
            assert rebalance.queues[QUEUE].locked_until_s < asyncio.get_running_loop().time()

    run(main())


def test_a_restarted_queue_has_the_lock_that_it_had(run: Callable[..., Any]) -> None:
    async def main() -> None:
        async with Client(broker="127.0.0.1:1") as client:
            rebalance = rebalance_of(client, ConsumerSettings(ordered=True), EarlierOffsets())
            queue = rebalance.queues[QUEUE] = ProcessQueue(QUEUE, None, 7, None)
            queue.locked_until_s = 1.0
            await rebalance.restart(queue, 3)
            assert rebalance.queues[QUEUE] is not queue
            assert rebalance.queues[QUEUE].locked_until_s == 1.0

    run(main())
