"""Memory budget: order of closing, connections that stay open, limits of unread bytes."""

from __future__ import annotations

import asyncio
import struct

import pytest

from duemq.net import accepting_server
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.memory import (
    FLOOR_BYTES,
    NOT_STUCK,
    REQUEST_BYTES,
    UNREAD_BYTES_MAX,
    MemoryBudget,
    estimate_bytes,
)
from duemq.net.server import RemotingServer
from duemq_common.clock import FakeClock
from duemq_common.request import Request
from tests.duemq.net.conftest import Run
from tests.support.raw_connection import WAIT_S, RawPeer, echo

MIB = 1 << 20
pytestmark = pytest.mark.finding("A20")


class FakeHolder:
    """Connection that charges the bytes that a test sets."""

    def __init__(self, budget: MemoryBudget, stuck_since_s: float = NOT_STUCK) -> None:
        self.budget, self.stuck_since_s = budget, stuck_since_s
        self.charged_bytes = self.unsent_bytes_max = 0
        self.why, self.calls = "", 0

    def hold(self, count: int) -> None:
        self.budget.charge(self, count)

    def update_charge(self) -> None:
        pass

    def limit_unsent(self, unsent_bytes_max: int) -> None:
        self.unsent_bytes_max = unsent_bytes_max
        self.calls += 1

    def shed(self, why: str) -> None:
        self.why = why
        self.hold(0)


def test_the_longest_stuck_connections_are_closed_first() -> None:
    budget = MemoryBudget(100 * MIB)
    holders = [FakeHolder(budget, stuck_since_s=since) for since in (5, 1, 3, 2, 4)]
    for holder in holders:
        holder.hold(20 * MIB)
    assert budget.shed_count == 0
    last = FakeHolder(budget, stuck_since_s=6)
    last.hold(MIB)
    assert [bool(holder.why) for holder in holders] == [False, True, False, True, False]
    assert "remotingMemoryMax" in holders[1].why
    assert (budget.used_bytes, budget.shed_count, last.why) == (61 * MIB, 2, "")


@pytest.mark.parametrize(
    ("held_bytes", "since_s"), [(FLOOR_BYTES, 0.0), (10 * MIB, NOT_STUCK)], ids=["small", "moves"]
)
def test_connections_with_little_memory_or_not_stuck_stay_open(
    held_bytes: int, since_s: float
) -> None:
    budget = MemoryBudget(MIB)
    holders = [FakeHolder(budget, since_s) for _ in range(40)]
    for holder in holders:
        holder.hold(held_bytes)
    assert budget.shed_count == 0
    assert budget.used_bytes == 40 * held_bytes


def test_the_limit_of_unread_bytes_decreases_with_free_memory() -> None:
    budget = MemoryBudget(100 * MIB)
    first, second = FakeHolder(budget), FakeHolder(budget)
    first.hold(50 * MIB)
    assert (first.unsent_bytes_max, budget.is_scarce) == (UNREAD_BYTES_MAX[0], False)
    second.hold(10 * MIB)
    assert (first.unsent_bytes_max, budget.is_scarce) == (UNREAD_BYTES_MAX[1], True)
    second.hold(30 * MIB)
    assert first.unsent_bytes_max == second.unsent_bytes_max == UNREAD_BYTES_MAX[2]
    first.hold(0)
    assert second.unsent_bytes_max == UNREAD_BYTES_MAX[0]


@pytest.mark.parametrize("bound", [50, 75])
def test_charges_around_a_limit_change_the_limits_of_connections_once(bound: int) -> None:
    """Each change calls every large connection."""
    budget = MemoryBudget(100 * MIB)
    others = [FakeHolder(budget) for _ in range(4)]
    for holder in others:
        holder.hold((bound - 2) * MIB // 4)
    last = FakeHolder(budget)
    last.hold(4 * MIB)
    calls = [holder.calls for holder in others]
    for _ in range(10):
        last.hold(0)
        last.hold(4 * MIB)
    assert [holder.calls for holder in others] == calls


def test_free_memory_is_returned_once_after_an_excess() -> None:
    budget = MemoryBudget(100 * MIB)
    holders = [FakeHolder(budget, stuck_since_s=since) for since in (1, 2, 3)]
    assert not budget.should_trim()
    for holder in holders:
        holder.hold(40 * MIB)
    assert budget.shed_count == 2
    assert not budget.should_trim()  # 40 MiB are in use
    holders[2].hold(0)
    assert [budget.should_trim(), budget.should_trim()] == [True, False]


def test_a_server_returns_free_memory_after_an_excess(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = asyncio.Event()

    async def main() -> None:
        loop, clock = asyncio.get_running_loop(), FakeClock()
        monkeypatch.setattr(
            accepting_server,
            "return_free_memory",
            lambda: loop.call_soon_threadsafe(returned.set),
        )
        async with RemotingServer(Dispatcher(), clock=clock) as server:
            await server.start("127.0.0.1", 0)
            server.memory.shed_count = 1
            for _ in range(20):  # the turns of the loop in which the periodic check wakes up
                await asyncio.sleep(0)
                clock.advance(RemotingLimits().sweep_ms)
            async with asyncio.timeout(WAIT_S):
                await returned.wait()

    run(main())


def test_a_reservation_is_refused_while_memory_is_scarce() -> None:
    budget = MemoryBudget(100)
    assert budget.reserve(75)
    assert not budget.reserve(1)
    budget.free(75)
    assert budget.reserve(1)
    assert budget.used_bytes == 1


def test_incomplete_frames_of_all_connections_share_one_limit(run: Run) -> None:
    """Each connection has 1 MiB of an incomplete frame; another connection is still answered."""
    limit_bytes, piece = 4 * MIB, bytes(MIB)

    async def main() -> None:
        limits = RemotingLimits(memory_bytes_max=limit_bytes)
        async with RemotingServer(
            Dispatcher({11: echo}), limits=limits, clock=FakeClock()
        ) as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            async with await RawPeer.connect(port) as other:
                hostile = [await RawPeer.connect(port) for _ in range(12)]
                for number, peer in enumerate(hostile):
                    peer.writer.write(struct.pack("!iI", 16 * MIB, 10) + piece)
                    other.send(Request(11, {}, b"x" * 1_000, opaque=number))
                    assert (await other.read_response()).opaque == number
                async with asyncio.timeout(WAIT_S):
                    while remoting.memory.shed_count < 6:
                        other.send(Request(11, {}, opaque=99))
                        await other.read_response()
                assert remoting.memory.used_bytes <= limit_bytes
                assert await hostile[0].at_end()
                for peer in hostile:
                    peer.writer.close()
        assert remoting.memory.used_bytes == 0

    run(main())


@pytest.mark.parametrize("text", ["x" * 4_000, "\U0001f600" * 1_000], ids=["1 byte", "4 bytes"])
def test_the_estimate_of_a_request_has_the_bytes_of_all_its_texts(text: str) -> None:
    for request in (Request(1, {"a": text}), Request(1, {text: "a"}), Request(1, {}, remark=text)):
        assert estimate_bytes(request) >= REQUEST_BYTES + 4_000
