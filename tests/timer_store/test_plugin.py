"""The timer store as a plugin: what it registers, and a reload of its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.plugin import BrokerPlugin
from duemq_common.clock import FakeClock
from duemq_common.errors import ConfigError
from duemq_common.request import Request
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.retention.pins import UNKNOWN
from tests.support.level_rig import FakeHost
from tests.support.stores import add_message, open_store
from timer_store.plugin import PERSIST_JOB, TimerPlugin, create_plugin


@asynccontextmanager
async def running(
    root: Path, clock: FakeClock, **properties: str
) -> AsyncIterator[tuple[TimerPlugin, Any, FakeHost]]:
    """Run the plugin on a small store."""
    host = FakeHost(str(root), clock, properties)
    plugin = create_plugin(host)
    with open_store(root, clock) as store:
        for topic in plugin.system_topics():
            store.topics.set_routing(topic.name, write_queues=1, read_queues=1, perm=topic.perm)
        store.topics.set_routing("T", write_queues=1, read_queues=1, perm=6)
        for dispatcher in plugin.dispatchers():
            store.add_dispatcher(dispatcher)
        async with plugin.running(store):
            yield plugin, store, host


def put(plugin: TimerPlugin, store: Any, due_ms: int) -> int:
    """Put a timer through the hooks; return its status."""
    batch = PutBatch(1)
    add_message(store, batch, "T", properties={"TIMER_DELIVER_MS": str(due_ms)})
    for hook in plugin.put_hooks():
        hook(batch, store.clock.now_ms())
    store.put(batch)
    return int(batch.rows[0]["status"])


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_it_is_a_broker_plugin(tmp_path: Path) -> None:
    plugin: BrokerPlugin = create_plugin(FakeHost(str(tmp_path), FakeClock(), {}))
    assert plugin.name == "timer_store"
    assert TIMER_TOPIC in [topic.name for topic in plugin.system_topics()]
    assert plugin.first_pending_offset() is UNKNOWN
    assert plugin.config_class() is type(plugin.config)  # type: ignore[attr-defined]


def test_a_disabled_wheel_delays_nothing(tmp_path: Path) -> None:
    host = FakeHost(str(tmp_path), FakeClock(), {"timerWheelEnable": "false"})
    plugin = create_plugin(host)
    assert [*plugin.system_topics(), *plugin.put_hooks(), *plugin.dispatchers()] == []


def test_a_timer_is_counted_and_delivered(tmp_path: Path) -> None:
    clock = FakeClock()

    async def steps() -> None:
        async with running(tmp_path, clock) as (plugin, store, host):
            due_ms = clock.now_ms() + 2_500
            assert put(plugin, store, due_ms) == 0
            assert plugin.first_pending_offset() == 0
            await settle()
            clock.set_ms(due_ms - 1)
            await settle()
            assert store.queue_bounds("T", 0) == (0, 0)
            clock.set_ms(due_ms)
            await settle()
            assert store.queue_bounds("T", 0) == (0, 1)
            assert plugin.first_pending_offset() is None
            assert not host.stopped

    asyncio.run(steps())


def test_requests_60_and_61(tmp_path: Path) -> None:
    clock = FakeClock()

    async def steps() -> None:
        async with running(tmp_path, clock) as (plugin, store, _):
            put(plugin, store, clock.now_ms() + 60_000)
            handlers = plugin.request_handlers()
            check = await handlers[60](Request(60, {}))
            metrics = await handlers[61](Request(61, {}))
            assert len(bytes(check.body)) == 56
            assert b"timingCount" in bytes(metrics.body)
        assert (tmp_path / "config" / "timercheck").read_bytes()[:56] != bytes(check.body)
        assert b'"T":{"count":1' in (tmp_path / "config" / "timermetrics").read_bytes()

    asyncio.run(steps())


def test_a_reload_changes_limits_but_not_file_properties(tmp_path: Path) -> None:
    clock = FakeClock()

    async def steps() -> None:
        async with running(tmp_path, clock) as (plugin, store, _):
            due_ms = clock.now_ms() + 2 * 86_400_000
            assert put(plugin, store, due_ms) == 0
            plugin.reconfigure({"timerMaxDelaySec": "60", "timerPrecisionMs": "100"})
            assert plugin.config.precision_ms == 1_000
            assert put(plugin, store, due_ms) == 13
            with pytest.raises(ConfigError):
                plugin.reconfigure({"timerMaxDelaySec": "soon"})
            assert plugin.config.max_delay_s == 60

    asyncio.run(steps())


def test_checkpoints_are_a_job_of_the_scheduler(tmp_path: Path) -> None:
    async def steps() -> None:
        async with running(tmp_path, FakeClock()) as (_, _, host):
            assert PERSIST_JOB in host.scheduler.jobs
        assert PERSIST_JOB not in host.scheduler.jobs

    asyncio.run(steps())
