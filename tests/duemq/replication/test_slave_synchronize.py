"""Tables that a replica copies: which, when, and what a failure does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from delivery.plugin import Request, Response
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq.replication.slave_synchronize import OFFSETS_BYTES_MAX, SlaveSynchronize
from message_store.clock import FakeClock
from tests.support.stores import open_store

TOPICS, OFFSETS = RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET
FULL = [TOPICS, OFFSETS, RequestCode.GET_ALL_DELAY_OFFSET]
OF_A_LONGER_LOG = b'{"commitLogOffset":1,"offsetTable":{}}'  # so no file is written
TURNS = 20


class FakeMaster(RemotingClient):
    """A client whose requests a list records."""

    def __init__(self, asked: list[int], bodies: dict[int, bytes]) -> None:
        super().__init__("127.0.0.1:1")
        self.asked, self.bodies = asked, bodies

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        self.asked.append(request.code)
        return Response(body=self.bodies.get(request.code, OF_A_LONGER_LOG))


class Bench:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.asked: list[int] = []
        self.bodies: dict[int, bytes] = {}

    async def after(self, step_ms: int) -> list[int]:
        """Return the codes of the requests of the next time."""
        self.asked.clear()
        self.clock.set_ms(self.clock.now_ms() + step_ms)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return list(self.asked)


def run(root: Path, work: Callable[[Bench, SlaveSynchronize], Awaitable[None]]) -> None:
    bench = Bench(FakeClock())

    async def main() -> None:
        with open_store(root, bench.clock) as store:
            synchronize = SlaveSynchronize(
                {TOPICS: lambda table: None, OFFSETS: lambda table: None},
                store, bench.clock, lambda address: FakeMaster(bench.asked, bench.bodies),
            )  # fmt: skip
            task = asyncio.create_task(synchronize.run())
            await work(bench, synchronize)
            synchronize.stop()
            await task

    asyncio.run(main())


def test_offsets_follow_each_second_and_tables_every_ten(tmp_path: Path) -> None:
    async def work(bench: Bench, synchronize: SlaveSynchronize) -> None:
        assert await bench.after(60_000) == []
        synchronize.follow("127.0.0.1:1")
        assert await bench.after(0) == FULL
        for _ in range(2):
            for _ in range(9):
                assert await bench.after(1_000) == [OFFSETS]
            assert await bench.after(1_000) == FULL

    run(tmp_path, work)


@pytest.mark.parametrize("is_large", [True, False])
def test_offsets_of_many_groups_and_failures_wait_for_the_tables(
    tmp_path: Path, is_large: bool
) -> None:
    async def work(bench: Bench, synchronize: SlaveSynchronize) -> None:
        table = b'{"offsetTable":{}' + b" " * OFFSETS_BYTES_MAX + b"}"
        bench.bodies[OFFSETS] = table if is_large else b"no JSON"
        synchronize.follow("127.0.0.1:1")
        assert OFFSETS in await bench.after(0)
        assert bool(synchronize.failure) != is_large
        for _ in range(9):
            assert await bench.after(1_000) == []
        bench.bodies.clear()
        assert await bench.after(1_000) == FULL
        assert await bench.after(1_000) == [OFFSETS]

    run(tmp_path, work)


def test_another_master_is_copied_at_once(tmp_path: Path) -> None:
    async def work(bench: Bench, synchronize: SlaveSynchronize) -> None:
        synchronize.follow("127.0.0.1:1")
        assert await bench.after(0) == FULL
        synchronize.follow("127.0.0.1:2")
        assert await bench.after(0) == FULL

    run(tmp_path, work)
