"""Waits for replicas: an offset that only grows, and what a store confirms by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from message_store.replication.acknowledgement import Missing, Replicated
from message_store.store import MessageStore
from tests.duemq.test_sync_flush import disk as disk
from tests.support.raw_connection import WAIT_S
from tests.support.stores import crash, open_store, put_one


def possible(offset: int = 0, timeout_ms: int = 60_000) -> Replicated:
    found = Replicated()
    found.require(offset)
    found.is_possible, found.timeout_ms = True, timeout_ms
    return found


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            await work()

    asyncio.run(main())


def test_a_wait_ends_when_its_offset_is_reached_not_before() -> None:
    async def work() -> None:
        replicated = possible(10)
        waits = [asyncio.ensure_future(replicated.wait(end)) for end in (10, 20, 30)]
        for offset, done in ((15, 1), (20, 2), (25, 2), (30, 3)):
            replicated.advance(offset)
            for _ in range(4):
                await asyncio.sleep(0)
            assert [each.done() for each in waits] == [True] * done + [False] * (3 - done)
        assert [await each for each in waits] == [None] * 3

    run(work)


def test_the_offset_never_goes_back() -> None:
    replicated = possible(10)
    replicated.advance(5)
    assert replicated.offset == 10


def test_without_replicas_nothing_is_waited_for() -> None:
    async def work() -> None:
        replicated = possible(10)
        replicated.is_possible = False
        assert await replicated.wait(11) is Missing.NO_REPLICA
        assert await replicated.wait(10) is None

    run(work)


def test_a_wait_has_an_end_and_leaves_nothing() -> None:
    """Replicas may be late for hours, while messages are sent all the time."""

    async def work() -> None:
        replicated = possible(timeout_ms=1)
        waits = [replicated.wait(end) for end in range(1, 100)]
        assert set(await asyncio.gather(*waits)) == {Missing.REPLICAS}
        assert len(replicated) == 0

    run(work)


def test_an_offset_that_is_reached_in_the_turn_of_the_timeout_is_confirmed() -> None:
    """A loop that was late reads the reports of replicas and ends waits in one turn."""

    async def work() -> None:
        replicated = possible(timeout_ms=0)
        asyncio.get_running_loop().call_soon(replicated.advance, 10)
        assert await replicated.wait(10) is None
        assert await replicated.wait(11) is Missing.REPLICAS
        assert len(replicated) == 0

    run(work)


def test_a_former_master_confirms_nothing_and_waits_for_nothing() -> None:
    async def work() -> None:
        replicated = possible(10)
        wait = asyncio.ensure_future(replicated.wait(20))
        await asyncio.sleep(0)
        replicated.give_up()
        assert await wait is Missing.REPLICAS
        replicated.advance(30)
        assert replicated.offset == 10
        later = asyncio.ensure_future(replicated.wait(20))
        await asyncio.sleep(0)
        assert later.done()
        assert later.result() is Missing.REPLICAS

    run(work)


def test_calls_come_in_the_order_of_the_log_at_most_once() -> None:
    replicated, called = possible(10), list[int]()
    for end in (5, 20, 30):
        replicated.when_reached(end, lambda at=end: called.append(at))  # type: ignore[misc]
    assert called == [5]
    replicated.advance(29)
    replicated.advance(40)
    replicated.advance(50)
    assert called == [5, 20, 30]


# -- the store ----------------------------------------------------------------------------------


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def of_sync_master(store: MessageStore) -> MessageStore:
    store.require_replicas()
    store.replicated.is_possible, store.replicated.timeout_ms = True, 60_000
    return store


def test_consumers_read_what_disk_and_replicas_have(tmp_path: Path, flush: str) -> None:
    async def work() -> None:
        with open_store(tmp_path, flush_disk_type=flush) as opened:
            store = of_sync_master(opened)
            ends = [int(put_one(store, "T")["phys_offset"]) for _ in range(3)]
            store.flush()
            assert store.readable_bounds("T", 0) == (0, 0)
            store.replicated.advance(ends[2])
            assert store.readable_bounds("T", 0) == (0, 2)
            woken: list[int] = []
            store.when_confirmed(store.max_offset, lambda: woken.append(1))
            await asyncio.sleep(0)
            assert not woken
            waiting = asyncio.ensure_future(store.wait_confirmed(store.max_offset))
            await asyncio.sleep(0)
            assert not waiting.done()
            store.replicated.advance(store.max_offset)
            assert await waiting is None
            assert woken == [1]
            assert store.readable_bounds("T", 0) == (0, 3)

    run(work)


def test_replicas_are_not_asked_for_what_is_not_on_the_disk(
    tmp_path: Path, disk: threading.Event
) -> None:
    async def work() -> None:
        changes = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 10}
        with open_store(tmp_path, **changes) as opened:
            store = of_sync_master(opened)
            disk.clear()
            put_one(store, "T")
            store.replicated.advance(store.max_offset)
            assert await store.wait_confirmed(store.max_offset) is Missing.DISK
            assert store.confirm_offset == 0
            disk.set()

    run(work)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_restart_confirms_no_more_than_before(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    store.__enter__()
    for _ in range(3):
        put_one(store, "T")
    of_sync_master(store)
    assert store.readable_bounds("T", 0) == (0, 3)  # before, no replica was required
    seen = store.max_offset
    put_one(store, "T")
    store.flush()
    if clean:
        store.__exit__(None, None, None)
    else:
        crash(store)
    with open_store(tmp_path) as again:
        again.require_replicas()
        assert again.confirm_offset == seen
        assert again.readable_bounds("T", 0) == (0, 3)
    with open_store(tmp_path) as as_async_master:
        as_async_master.confirm_without_replicas()
        assert as_async_master.readable_bounds("T", 0) == (0, 4)
    with open_store(tmp_path) as again:
        again.require_replicas()
        assert again.readable_bounds("T", 0) == (0, 4)  # consumers have read it


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_flush_before_the_role_is_known_confirms_nothing(tmp_path: Path, clean: bool) -> None:
    """A start flushes the log before it requires replicas, and may end before it does."""
    with open_store(tmp_path) as store:
        of_sync_master(store)
        put_one(store, "T")
        seen = store.max_offset
        store.replicated.advance(seen)
        put_one(store, "T")
    unfinished = open_store(tmp_path)
    unfinished.__enter__()
    unfinished.flush()
    if clean:
        unfinished.__exit__(None, None, None)
    else:
        crash(unfinished)
    with open_store(tmp_path) as again:
        again.flush()
        again.require_replicas()
        assert again.confirm_offset == seen
        assert again.readable_bounds("T", 0) == (0, 1)
