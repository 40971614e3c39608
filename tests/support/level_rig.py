"""Level service on a store, with a fake plugin host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from duemq_common.clock import FakeClock
from message_store.kernels.preparation import Preparation
from message_store.log.batch import PutBatch
from schedule_service.plugin import SchedulePlugin, create_plugin
from tests.support.replica_rig import until
from tests.support.stores import add_message, crash, open_store, records_of

LEVELS = "1s 5s 10s 1m"


class FakeScheduler:
    """Scheduler whose jobs are run by tests."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}

    def add_job(self, function: Any, trigger: str, *, id: str, **settings: Any) -> None:
        self.jobs[id] = function

    def remove_job(self, id: str) -> None:
        del self.jobs[id]


@dataclass
class FakeHost:
    """A fake `PluginHost`."""

    store_root: str
    clock: FakeClock
    properties: Mapping[str, str]
    scheduler: FakeScheduler = field(default_factory=FakeScheduler)
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)
    stopped: list[str] = field(default_factory=list)
    kernels: Preparation = field(default_factory=Preparation)
    master_address: str | None = None

    def stop(self, reason: str) -> None:
        self.stopped.append(reason)


@dataclass
class Rig:
    """A running level service."""

    store: Any
    clock: FakeClock
    host: FakeHost
    plugin: SchedulePlugin
    crashed: bool = False

    def crash(self) -> None:
        """End without persisting or syncing, like a killed process."""
        assert self.plugin.parts is not None
        self.crashed = True
        self.plugin.parts.keeper.persist = _nothing

    @property
    def service(self) -> Any:
        assert self.plugin.parts is not None
        return self.plugin.parts.service

    def send(
        self,
        level: int,
        body: bytes = b"body",
        *,
        topic: str = "T",
        queue_id: int = 0,
        count: int = 1,
        **properties: str,
    ) -> PutBatch:
        """Send messages with a level through the put hook."""
        batch = PutBatch(max(count, 1))
        for number in range(count):
            text = properties | ({"DELAY": str(level)} if level else {})
            one = body if count == 1 else body + b"%d" % number
            add_message(self.store, batch, topic, queue_id, one, properties=text)
        return self.put(batch)

    def put(self, batch: PutBatch) -> PutBatch:
        for hook in self.plugin.put_hooks():
            hook(batch, self.clock.now_ms())
        self.store.put(batch)
        return batch

    async def settle(self) -> None:
        """Run the service until it has no more work at this time."""
        for _ in range(5):
            await asyncio.sleep(0)
        await until(lambda: self.service.is_idle)

    async def advance(self, step_ms: int) -> None:
        """Move the clock and let the service work."""
        self.clock.advance(step_ms)
        await self.settle()

    async def persist(self) -> bool:
        """Run the job that writes delayOffset.json."""
        done: bool = await self.host.scheduler.jobs["schedule_service.persist"]()
        return done

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Any]:
        """Return the decoded records of a queue."""
        return records_of(self.store, topic, queue_id)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]


@asynccontextmanager
async def level_service(
    root: Path,
    clock: FakeClock | None = None,
    properties: Mapping[str, str] | None = None,
    *,
    topics: tuple[str, ...] = ("T",),
    before: Any = None,
    **store_changes: Any,
) -> AsyncIterator[Rig]:
    """Open a store with a level service on it, as a broker does.

    Args:
        before: Called with the open store before the plugin runs.
    """
    clock = clock or FakeClock()
    host = FakeHost(str(root), clock, {"messageDelayLevel": LEVELS, **(properties or {})})
    plugin = create_plugin(host)
    rules = tuple(plugin.tags_code_rules())
    store = open_store(root, clock, rules, **store_changes)
    store.__enter__()
    rig = Rig(store, clock, host, plugin)
    try:
        for topic in plugin.system_topics():
            queues = topic.queues
            store.topics.set_routing(
                topic.name, write_queues=queues, read_queues=queues, perm=topic.perm
            )
        for name in topics:
            store.topics.set_routing(name, write_queues=4, read_queues=4, perm=6)
        for dispatcher in plugin.dispatchers():
            store.add_dispatcher(dispatcher)
        if before is not None:
            before(store)
        async with plugin.running(store):
            await rig.settle()
            yield rig
            assert not host.stopped
    finally:
        if rig.crashed:
            crash(store)
        else:
            store.__exit__(None, None, None)


async def _nothing() -> bool:
    return True
