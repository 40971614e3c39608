"""Preparation of kernels while a broker serves: compiled in the background, then loaded.

    before the port opens    kernels of sends and deliveries
    then, group by group     kernels of requests, which wait for them, and of faster ways to decode
    at last, when idle       all other kernels of the list

Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from message_store.kernels import registry
from message_store.kernels.compilation import IDLE_NICENESS, Compilation, CompilationFailed
from message_store.kernels.registry import KernelEntry

log = logging.getLogger(__name__)
Compile = Callable[[Sequence[KernelEntry], int], Awaitable[None]]
"""Compiles kernels with a niceness, in processes; cancellation ends the processes."""


async def compile_in_processes(kernels: Sequence[KernelEntry], niceness: int) -> None:
    """Compile kernels while other tasks of this loop run.

    Raises:
        CompilationFailed: A kernel cannot be compiled.
    """
    missing = await asyncio.to_thread(registry.missing, kernels)
    if missing:
        with Compilation(missing, niceness=niceness) as compilation:
            await asyncio.to_thread(compilation.wait)


class Preparation:
    """Preparation of groups of kernels: compiles and loads them, and reports which are ready.

    Args:
        groups: Groups that are not ready yet, in the order of their preparation. Empty if the cache
            has all kernels, or if the first call compiles them.
        compiles: Function that compiles kernels; tests pass another one.
    """

    def __init__(
        self, groups: Iterable[str] = (), compiles: Compile = compile_in_processes
    ) -> None:
        self._ready = {group: asyncio.Event() for group in groups}
        self._compiles = compiles
        self._loaded = set[str]()

    @property
    def is_done(self) -> bool:
        """Whether every group is ready."""
        return all(event.is_set() for event in self._ready.values())

    def is_ready(self, group: str) -> bool:
        """Return whether the kernels of a group can be called without being compiled."""
        event = self._ready.get(group)
        return event is None or event.is_set()

    async def wait(self, group: str, *, stop: asyncio.Event | None = None) -> None:
        """Return when a group is ready, or when `stop` is set."""
        if self.is_ready(group):
            return
        waits = [event.wait() for event in (self._ready[group], stop) if event is not None]
        tasks = [asyncio.create_task(each) for each in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def wait_for_all(self) -> None:
        """Return when every group is ready."""
        for group in self._ready:
            await self.wait(group)

    async def load_for_request(self, group: str) -> None:
        """Return when every group is ready and one is loaded: by a thread, at the first call."""
        await self.wait_for_all()
        if group not in self._loaded:
            await asyncio.to_thread(registry.load, group)
            self._loaded.add(group)

    @asynccontextmanager
    async def running(self, *groups: str) -> AsyncIterator[None]:
        """Load those of `groups` that are ready, then `run`, while the block is open."""
        task = asyncio.create_task(self._load_and_run(groups), name="kernels")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _load_and_run(self, groups: tuple[str, ...]) -> None:
        ready = [group for group in groups if self.is_ready(group)]
        await asyncio.to_thread(registry.load, *ready)
        await self.run()

    async def run(self) -> None:
        """Prepare every group, then compile all other kernels; called once, as a task.

        If a kernel cannot be compiled, all groups count as ready: its first call compiles it, or
        raises. Cancellation ends the compilation, and no further group becomes ready.
        """
        if self.is_done:
            return
        groups = ", ".join(self._ready)
        log.warning("kernels are being compiled for %s: some requests wait for them", groups)
        try:
            await self._prepare()
        except CompilationFailed as error:
            log.error("kernels cannot be compiled: %s", error)
            for event in self._ready.values():
                event.set()

    async def _prepare(self) -> None:
        done = set[int]()
        for group, event in self._ready.items():
            kernels = [each for each in registry.kernels_of([group]) if each.number not in done]
            await self._compiles(kernels, 0)
            await asyncio.to_thread(registry.load, group)
            done |= {each.number for each in kernels}
            event.set()
            log.info("kernels of %s are compiled", group)
        rest = [each for each in registry.every_kernel() if each.number not in done]
        await self._compiles(rest, IDLE_NICENESS)
        registry.set_complete()
        log.info("all kernels are compiled")
