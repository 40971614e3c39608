"""Simulated processes, each with an event loop, a clock and a host.

`replaced` substitutes simulations for the product's interfaces to the operating system: sockets,
the threads that sync the log and read ahead, the scheduler of periodic jobs, the boot id, and the
timer that limits a turn of sends. All other code is the product's.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple

import pytest

import duemq.broker.broker
import message_store.store
from duemq.broker.periodic_jobs import FINISH_S_MAX
from duemq.net import bound_socket
from duemq.net.connection import Connection
from duemq.net.listener import AcceptedSocket
from duemq.replication import ha_client
from duemq_common.clock import Signal, SystemClock
from message_store.log.flusher import Flusher
from message_store.log.read_ahead import ReadAhead
from message_store.recovery import checkpoint
from tests.simulation.event_loop import SimLoop
from tests.simulation.network import Host, Network, Timeline
from timer_store.checkpoint import standby

EPOCH_MS: Final = 1_700_000_000_000
TURN_US: Final = (20, 80)  # minimum and maximum duration of a turn
TURNS_TO_END: Final = 200_000
STANDBY_MS: Final = 2_000  # shorter than the runs, for checkpoints of replicas in each


class Usage(NamedTuple):
    """Disk usage in bytes, as returned by `shutil.disk_usage`."""

    total: int
    used: int
    free: int


class SimClock:
    """Clock of a machine, with an offset and a drift.

    Args:
        offset_ms: Initial error of the wall clock, in ms.
        drift_ppm: Drift of the clock, in millionths; positive: fast.
    """

    WAIT_MS_MAX = 1_000

    def __init__(self, timeline: Timeline, *, offset_ms: int = 0, drift_ppm: int = 0) -> None:
        self._timeline, self.drift_ppm = timeline, drift_ppm
        self.offset_ms = offset_ms

    def steady_us(self) -> int:
        now_us = self._timeline.now_us
        return now_us + now_us * self.drift_ppm // 1_000_000

    def timeline_us(self, steady_us: int) -> int:
        """Return the simulated time at which the steady clock has reached a time."""
        return steady_us * 1_000_000 // (1_000_000 + self.drift_ppm) + 1

    def steady_ms(self) -> int:
        return self.steady_us() // 1_000

    def monotonic_s(self) -> float:
        return self.steady_us() / 1_000_000

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + self.steady_ms()

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        """Wait like `SystemClock`."""
        seen_ms = 0
        while not event.is_set():
            if until_ms is None:
                await event.wait()
                return
            before_ms, seen_ms = seen_ms, self.now_ms()
            if until_ms <= seen_ms or seen_ms < before_ms:
                return
            left_s = min(until_ms - seen_ms, self.WAIT_MS_MAX) / 1_000
            if isinstance(event, Signal):
                await event.wait_for(left_s)
                continue
            try:
                async with asyncio.timeout(left_s):
                    await event.wait()
            except TimeoutError:
                continue


class SimHost(Host):
    """Machine with a clock and a disk.

    Attributes:
        boots: Number of boots.
        sync_us: Minimum and maximum duration of a sync of the log, in microseconds.
    """

    def __init__(self, network: Network, name: str, chance: random.Random) -> None:
        super().__init__(network, name)
        self.chance = chance
        self.clock = SimClock(network.timeline)
        self.boots = 1
        self.sync_us = (200, 4_000)


class Process:
    """Running process on a host.

    Attributes:
        is_paused: Whether the process is stopped (SIGSTOP) and gets no turns.
        main: Main task.
    """

    def __init__(self, host: SimHost, chance: random.Random) -> None:
        self.host, self._chance = host, chance
        self._timeline = host.network.timeline
        self.is_paused = False
        self._free_us = 0
        self._has_io = False
        self._ends_us: int | None = None  # clock of the process while its tasks are cancelled
        self.loop = SimLoop(host, self._steady_s, self._thread_us)
        self.main: asyncio.Task[Any] | None = None

    def _thread_us(self) -> int:
        return self._chance.randint(50, 3_000)

    def _steady_s(self) -> float:
        if self._ends_us is not None:
            return self._ends_us / 1_000_000
        return self.host.clock.monotonic_s()

    def start(self, main: Coroutine[Any, Any, Any]) -> None:
        self.main = self.loop.create_task(main)

    def next_us(self) -> int | None:
        """Return the time of the next turn; None: the process waits for an event."""
        if self.is_paused:
            return None
        now_us = self._timeline.now_us
        if self.host.changed:
            self._has_io, self.host.changed = self.loop.is_ready, False
        if self._has_io or self.loop.has_work:
            return max(now_us, self._free_us)
        timer_s = self.loop.next_timer_s
        if timer_s is None:
            return None
        return max(now_us, self._free_us, self.host.clock.timeline_us(round(timer_s * 1e6)))

    def turn(self) -> None:
        """Run one turn of the loop."""
        self.loop.turn()
        self.host.changed = True
        self._free_us = self._timeline.now_us + self._chance.randint(*TURN_US)

    def end(self, *, is_quiet: bool) -> None:
        """End the process like `kill -9`; the caller discards later changes of its files.

        The tasks are cancelled outside simulated time, and their writes reach no other process.
        """
        self.host.end_process(is_quiet=is_quiet)
        self._ends_us = self.host.clock.steady_us()
        for task in sorted(asyncio.all_tasks(self.loop), key=hash):
            task.cancel()
        for _ in range(TURNS_TO_END):
            if not asyncio.all_tasks(self.loop):
                break
            if not self.loop.has_work:
                timer_s = self.loop.next_timer_s
                assert timer_s is not None, asyncio.all_tasks(self.loop)
                self._ends_us = max(self._ends_us, round(timer_s * 1e6) + 1)
            self.loop.turn()
        else:
            raise AssertionError(f"tasks do not end: {asyncio.all_tasks(self.loop)}")
        self.loop.close()


class SimScheduler:
    """Scheduler of periodic jobs with the part of APScheduler's interface that the product uses."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[str, asyncio.TimerHandle] = {}
        self._running: dict[str, asyncio.Task[Any]] = {}

    def start(self) -> None: ...

    def add_job(
        self,
        work: Callable[[], Awaitable[Any]],
        trigger: str,
        *,
        seconds: float,
        id: str,
        **options: Any,
    ) -> None:
        assert trigger == "interval"

        def due() -> None:
            self._jobs[id] = self._loop.call_later(seconds, due)
            running = self._running.get(id)
            if running is None or running.done():
                self._running[id] = self._loop.create_task(_run(work), name=id)

        self._jobs[id] = self._loop.call_later(seconds, due)

    def get_jobs(self) -> list[Any]:
        """Return no jobs: simulated intervals do not depend on the wall clock."""
        return []

    def remove_job(self, job: str) -> None:
        self._jobs.pop(job).cancel()

    async def finish(self) -> None:
        """Start no more jobs, let the running ones finish."""
        for handle in self._jobs.values():
            handle.cancel()
        self._jobs.clear()
        if running := [task for task in self._running.values() if not task.done()]:
            await asyncio.wait(running, timeout=FINISH_S_MAX)


async def _run(work: Callable[[], Awaitable[Any]]) -> None:
    await work()


class SimFlusher(Flusher):
    """Flusher without a thread, which syncs in a later turn of the loop.

    Attributes:
        is_stopping: Whether the store is closing.
    """

    def start(self) -> None:
        self.is_stopping = self._is_requested = False
        self._loop = running_loop()
        self._look()

    def request(self, offset: int) -> asyncio.Future[bool]:
        future = super().request(offset)
        if not future.done():
            self._request()
        return future

    def stop(self) -> None:
        self.is_stopping = True
        self._interval.cancel()
        self.flush()

    def _request(self) -> None:
        if not self._is_requested and not self.is_stopping:
            self._is_requested = True
            host: Any = self._loop.host
            self._loop.call_later(host.chance.randint(*host.sync_us) / 1e6, self._sync)

    def _sync(self) -> None:
        self._is_requested = False
        if self.is_stopping or self.failure is not None:
            return
        self.flush()
        if self._requested_end > self.durable:
            self._request()

    def _look(self) -> None:
        self._interval = self._loop.call_later(self._interval_s, self._due)

    def _due(self) -> None:
        self._request()
        self._look()


def running_loop() -> SimLoop:
    """Return the loop of the current turn."""
    found = asyncio.get_running_loop()
    assert isinstance(found, SimLoop)
    return found


class SimSockets:
    """Replacement of the module `socket`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    def socket(self, *kinds: Any) -> Any:
        return running_loop().host.new_socket()


def replaced(patch: pytest.MonkeyPatch) -> None:
    """Replace the product's interfaces to the operating system with simulations."""
    for module in (ha_client, bound_socket):
        patch.setattr(module, "socket", SimSockets())
    patch.setattr(message_store.store, "Flusher", SimFlusher)
    patch.setattr(ReadAhead, "start", lambda self: None)
    patch.setattr(ReadAhead, "stop", lambda self: None)
    patch.setattr(duemq.broker.broker, "new_scheduler", SimScheduler)
    patch.setattr(checkpoint, "_boot_id", _boot_id)
    patch.setattr(standby, "EVERY_MS", STANDBY_MS)
    patch.setattr(SystemClock, "monotonic_s", lambda self: 0.0)
    patch.setattr(Connection, "__hash__", lambda self: self._address[1])
    patch.setattr(AcceptedSocket, "__hash__", lambda self: self.peer[1])
    patch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 1 << 39, 1 << 39))


def _boot_id() -> bytes:
    host: Any = running_loop().host
    return b"%s boot %d" % (host.name.encode(), host.boots)
