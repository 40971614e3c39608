"""Broker on a fake clock with in-memory clients, which can end in three ways.

    stop     clean stop
    kill     SIGKILL: all written data remains
    cut      power cut: another boot ID; of the unsynced log bytes only the beginning or some pages
             remain, of the unsynced queue units none, some or all

A killed broker continues in its own directory until it is closed; the next broker opens a copy.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.broker import Broker
from duemq.broker.plugins import InstalledPlugin
from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.limits import RemotingLimits
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from message_store.log.commit_log import LogFile
from message_store.recovery import checkpoint
from tests.simulation.power_cut import Loss, copy_files, lose
from tests.support.frame_replay import Wire
from tests.support.loopback_broker import LEVELS, TOPICS, properties_of

TIMERS = InstalledPlugin(
    "timer_store",
    EntryPoint("timer_store", "timer_store.plugin:create_plugin", ENTRY_POINT_GROUP),
)
UNTIL_S_MAX = 120  # on a busy machine
REST_TURNS = 8
THREAD_WAIT_S = 0.0002  # time for the threads that sync files


class Gate:
    """Gate that suspends all syncs of the log while it is closed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.boot = 1
        sync = LogFile.sync

        def gated(file: LogFile) -> None:
            self.open.wait()
            sync(file)

        patch.setattr(LogFile, "sync", gated)
        patch.setattr(checkpoint, "_boot_id", lambda: b"boot %d" % self.boot)


class Client:
    """In-memory connection, with requests and responses by number."""

    def __init__(self, broker: Broker, ingest: Any) -> None:
        self.connection = Connection(
            broker.parts.dispatcher, limits=RemotingLimits(), frame_handler=ingest
        )
        self.wire = Wire(50_000)
        self.connection.connection_made(self.wire)
        self.responses: dict[int, Response] = {}
        self._opaque = 0

    def write(self, request: Request) -> int:
        """Send a request; return its number."""
        self._opaque += 1
        request.opaque = self._opaque
        data = codec.encode_request(request)
        view = self.connection.get_buffer(len(data))
        while data:
            part = data[: len(view)]
            view[: len(part)] = part
            self.connection.buffer_updated(len(part))
            data, view = data[len(part) :], self.connection.get_buffer(-1)
        return self._opaque

    def read(self) -> None:
        """Read the responses that arrived."""
        for header, body in self.wire.take():
            fields = header.get("extFields") or {}
            response = Response(header["code"], header.get("remark"), fields, body)
            self.responses[header["opaque"]] = response


class Rig:
    """Broker of a simulation, across restarts."""

    def __init__(
        self, home: Path, gate: Gate, chance: random.Random, properties: dict[str, str]
    ) -> None:
        self.clock = FakeClock()
        self.gate = gate
        self._home, self._chance, self.properties = home, chance, properties
        self.plugins: tuple[InstalledPlugin, ...] = (LEVELS, TIMERS)
        self.lose_pages = False  # whether a power cut loses any pages, not only the last ones
        self._start_count = 0
        self._synced = 0  # log offset synced by any process
        self.root = home / "store0"
        self.broker: Any = None
        self.client: Any = None

    async def start(self) -> None:
        """Start the broker on the current directory."""
        properties = properties_of(self.root, **self.properties)
        self.broker = Broker(properties, clock=self.clock, plugins=list(self.plugins))
        await self.broker.__aenter__()
        if not self._start_count:
            for topic in TOPICS:
                await self.broker.parts.topics.ensure(topic, queues=2)
        self._start_count += 1
        self.client = Client(self.broker, self.broker.new_ingest())

    async def _end(self) -> None:
        self.gate.open.set()
        self.client.connection.connection_lost(None)
        await self.broker.__aexit__(None, None, None)

    async def stop(self) -> None:
        """Stop cleanly."""
        await self._end()

    async def die(self, *, cut: bool) -> None:
        """End the broker; continue with a copy of its current files."""
        self._synced = max(self._synced, self.broker.store.durable_offset)
        marks = self.broker.store.mark.read()
        end = self.broker.store.max_offset
        root = self._home / f"store{self._start_count}"
        copy_files(self.root, root)
        old, self.root = self.root, root
        await self._end()
        shutil.rmtree(old)
        if cut:
            self.gate.boot += 1
            loss = Loss(self._synced, end, marks.durable if marks else 0)
            lose(root, loss, self._chance, any_page=self.lose_pages)

    @property
    def timers(self) -> Any:
        """Return the timer store."""
        return self.broker.plugins.plugins["timer_store"].parts.timers

    # -- running the event loop -----------------------------------------------------------------

    @property
    def service(self) -> Any:
        """Return the level service."""
        return self.broker.plugins.plugins["schedule_service"].parts.service

    async def turn(self, count: int = 1) -> None:
        """Run the event loop `count` times."""
        for _ in range(count):
            await asyncio.sleep(0)
        self.client.read()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Run the event loop until a condition holds."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + UNTIL_S_MAX
        for number in itertools.count():
            self.client.read()
            if condition():
                return
            if loop.time() > end_s:
                raise AssertionError(f"the condition did not become true: {self.state()}")
            await asyncio.sleep(THREAD_WAIT_S if number % 32 == 31 else 0)

    def state(self) -> dict[int, object]:
        """Return the state of the level service for an error message."""
        return {
            number: (
                level.cursor.segments,
                list(level.in_flight),
                level.paused_until_ms - self.clock.now_ms(),
            )
            for number, level in self.service.levels.items()
        }

    async def rest(self) -> None:
        """Run until the broker has no more work at this time; syncs must not be suspended."""
        await self.turn(REST_TURNS)
        await self.until(lambda: self.service.is_idle and self.timers.is_idle)

    async def confirmed(self) -> None:
        """Wait until the whole log is confirmed; syncs must not be suspended."""
        store = self.broker.store
        assert await store.wait_confirmed(store.max_offset) is None

    async def advance(self, step_ms: int) -> None:
        """Move the clock, forwards or backwards."""
        self.clock.set_ms(self.clock.now_ms() + step_ms)
        await self.rest()

    async def call(self, request: Request) -> Response:
        """Send a request and wait for its response."""
        number = self.client.write(request)
        await self.until(lambda: number in self.client.responses)
        response: Response = self.client.responses.pop(number)
        return response

    async def persist(self) -> bool:
        """Run the job that writes delayOffset.json."""
        keeper = self.broker.plugins.plugins["schedule_service"].parts.keeper
        done: bool = await keeper.persist()
        await self.broker.plugins.plugins["timer_store"].parts.keeper.persist()
        return done
