"""A plugin that holds timers and never delivers one: for tests of what happens at the put."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from typing import Any

from delayed_delivery.plugin import ENTRY_POINT_GROUP, PluginBase, PluginHost, SystemTopic
from duemq.broker.plugins import InstalledPlugin
from duemq_common.config import from_properties
from duemq_common.topics import TIMER_TOPIC
from message_store.hooks import PutHook
from message_store.log.batch import PutBatch
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook


class HoldTimers(PluginBase):
    """Runs the put hook; its topic's messages stay where they are."""

    name = "timers"

    def __init__(self, host: PluginHost) -> None:
        self._config = from_properties(TimerConfig, host.properties)
        self._hook: TimerHook | None = None

    def system_topics(self) -> Sequence[SystemTopic]:
        return (SystemTopic(TIMER_TOPIC, 1),)

    def put_hooks(self) -> Sequence[PutHook]:
        return (self._hold,)

    @asynccontextmanager
    async def running(self, store: Any) -> AsyncIterator[None]:
        self._hook = TimerHook(store.topics, self._config, lambda time_ms: 0)
        yield

    def _hold(self, batch: PutBatch, now_ms: int) -> None:
        assert self._hook is not None
        self._hook(batch, now_ms)


LEVELS = InstalledPlugin(
    "schedule_service",
    EntryPoint("schedule_service", "schedule_service.plugin:create_plugin", ENTRY_POINT_GROUP),
)
TIMERS = InstalledPlugin(
    "timers", EntryPoint("timers", f"{__name__}:HoldTimers", ENTRY_POINT_GROUP)
)
