"""Preparation of kernels in groups, while work that needs none continues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from message_store.kernels import registry
from message_store.kernels.compilation import IDLE_NICENESS, CompilationFailed
from message_store.kernels.preparation import Preparation
from message_store.kernels.registry import KernelEntry, every_kernel


class Compiler:
    """A fake of the child processes that completes one group per `step`."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.failure: Exception | None = None
        self._steps = asyncio.Semaphore(0)

    async def __call__(self, kernels: Sequence[KernelEntry], niceness: int) -> None:
        await self._steps.acquire()
        self.batches.append((len(kernels), niceness))
        if self.failure is not None:
            raise self.failure

    def step(self) -> None:
        self._steps.release()


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the groups that were loaded or completed."""
    found: list[str] = []
    monkeypatch.setattr(registry, "load", found.append)
    monkeypatch.setattr(registry, "set_complete", lambda: found.append("complete"))
    return found


def test_without_kernels_preparation_is_ready_at_once() -> None:
    async def check() -> None:
        preparation = Preparation()
        assert preparation.is_done
        assert preparation.is_ready("levels")
        await preparation.wait("levels")
        await preparation.wait_for_all()
        await preparation.run()

    asyncio.run(check())


def test_groups_become_ready_in_order_and_the_rest_is_compiled_when_idle(
    loaded: list[str],
) -> None:
    async def check() -> None:
        compiler = Compiler()
        preparation = Preparation(("levels", "timers"), compiler)
        running = asyncio.create_task(preparation.run())
        assert not preparation.is_ready("levels")
        assert preparation.is_ready("store")
        compiler.step()
        await preparation.wait("levels")
        assert not preparation.is_ready("timers")
        compiler.step()
        await preparation.wait_for_all()
        assert preparation.is_done
        assert not running.done()
        compiler.step()
        await running
        assert sum(count for count, _ in compiler.batches) == len(every_kernel())
        assert [niceness for _, niceness in compiler.batches] == [0, 0, IDLE_NICENESS]

    asyncio.run(check())
    assert loaded == ["levels", "timers", "complete"]


def test_a_group_is_loaded_by_the_first_request_that_needs_it(loaded: list[str]) -> None:
    async def check() -> None:
        compiler = Compiler()
        preparation = Preparation(("levels",), compiler)
        running = asyncio.create_task(preparation.run())
        first = asyncio.create_task(preparation.load_for_request("pending_timers"))
        await asyncio.sleep(0)
        assert not first.done()
        compiler.step()
        await first
        await preparation.load_for_request("pending_timers")
        compiler.step()
        await running

    asyncio.run(check())
    assert sorted(loaded) == ["complete", "levels", "pending_timers"]


def test_after_a_failed_compilation_kernels_compile_at_their_first_call(loaded: list[str]) -> None:
    async def check() -> None:
        compiler = Compiler()
        compiler.failure = CompilationFailed("no space")
        preparation = Preparation(("levels", "timers"), compiler)
        compiler.step()
        await preparation.run()
        assert preparation.is_done

    asyncio.run(check())
    assert loaded == []


def test_waiting_ends_when_the_broker_stops() -> None:
    async def check() -> None:
        preparation, stop = Preparation(("levels",), Compiler()), asyncio.Event()
        waiting = asyncio.create_task(preparation.wait("levels", stop=stop))
        await asyncio.sleep(0)
        assert not waiting.done()
        stop.set()
        await waiting
        assert not preparation.is_ready("levels")

    asyncio.run(check())
