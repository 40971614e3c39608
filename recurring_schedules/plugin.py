"""Recurring schedules as a broker plugin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delayed_delivery.plugin import PluginBase, PluginHost, SystemTopic, referral_text
from delayed_delivery.service_tasks import report_failure
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import PERM_READ, SCHEDULES_TOPIC
from message_store.retention.pins import UNKNOWN, FirstPending
from recurring_schedules.checkpoint import ScheduleCheckpoints, load_table
from recurring_schedules.collector import ScheduleCollector
from recurring_schedules.names import PLUGIN, TIMER_PLUGIN
from recurring_schedules.planner import Planner
from recurring_schedules.put_hook import ScheduleHook
from recurring_schedules.renewal import DefinitionRenewal
from recurring_schedules.requests import ScheduleRequests
from recurring_schedules.stored_pin import stored_pin
from recurring_schedules.table import ScheduleTable, read_journal
from recurring_schedules.views import admin_views

if TYPE_CHECKING:
    from message_store.hooks import PutHook
    from message_store.log.batch import PutBatch
    from message_store.queues.topic_table import TopicTable
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
NO_TIMERS: Final = (
    "timers are switched off, so no schedule can run: set timerWheelEnable=true and restart"
)


@dataclass(slots=True)
class RunningSchedules:
    """Components that exist while the store is open."""

    store: MessageStore
    table: ScheduleTable
    requests: ScheduleRequests


class RecurringPlugin(PluginBase):
    """Plugin of schedules: each appends its next occurrence as a timer."""

    name = PLUGIN
    after = (TIMER_PLUGIN,)

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self._running: RunningSchedules | None = None
        self._pin: FirstPending = UNKNOWN  # while no schedules run
        self._topics: TopicTable | None = None  # those of the open store

    def system_topics(self) -> Sequence[SystemTopic]:
        return (SystemTopic(SCHEDULES_TOPIC, 1, PERM_READ),)

    def put_hooks(self) -> Sequence[PutHook]:
        if self._topics is None:  # a replica
            return ()
        return (ScheduleHook(self._topics, lambda: self._started().requests),)

    def request_handlers(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.CHANGE_SCHEDULE: self._change}

    def admin_views(self) -> Mapping[str, Callable[[], object]]:
        return admin_views(self._parts)

    def first_pending_offset(self) -> FirstPending:
        """Return the log offset of the oldest definition."""
        if self._running is None:
            return self._pin
        return self._running.table.oldest_definition()

    @asynccontextmanager
    async def running(self, store: MessageStore) -> AsyncIterator[None]:
        """Bring the table up to date, then plan while the block is open."""
        self._topics = store.topics
        timers = self._host.plugin(TIMER_PLUGIN)
        hooks = () if timers is None else tuple(timers.put_hooks())
        pending = None if timers is None else timers.pending_messages()
        if not hooks or timers is None or pending is None:
            self._pin = stored_pin(store)
            if self._pin is not None:
                log.warning("%s", NO_TIMERS)
            yield
            self._pin = UNKNOWN
            return
        table = recovered_table(store)
        planner = Planner(store, table, self._host.clock, hooks)
        requests = ScheduleRequests(store, table, planner, pending, self._host.clock)
        on_journal = JournalDispatcher(store, table, planner.wake)
        store.add_dispatcher(on_journal, topic=SCHEDULES_TOPIC)
        await requests.finish_withdrawals()
        checkpoints = ScheduleCheckpoints(store, table, self._host.clock)
        renewal = DefinitionRenewal(store, table, self._host.clock)
        collector = ScheduleCollector(table, planner.stats)
        async with asyncio.TaskGroup() as tasks:
            self._running = RunningSchedules(store, table, requests)
            self._host.metrics.register(collector)
            tasks.create_task(self._run(planner), name="recurring schedules")
            tasks.create_task(checkpoints.run(), name="checkpoints of schedules")
            tasks.create_task(renewal.run(), name="renewal of schedules")
            tasks.create_task(requests.run(), name="withdrawals of schedules")
            try:
                yield
            finally:
                planner.stop()
                renewal.stop()
                requests.stop()
                checkpoints.stop()
                self._host.metrics.unregister(collector)
        self._running = None
        store.remove_dispatcher(on_journal, topic=SCHEDULES_TOPIC)

    @asynccontextmanager
    async def following(self, store: MessageStore) -> AsyncIterator[None]:
        """Write checkpoints of a replica's schedules while the block is open."""
        checkpoints = ScheduleCheckpoints(store, load_table(store), self._host.clock, follows=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(checkpoints.run(), name="schedules of a replica")
            try:
                yield
            finally:
                checkpoints.stop()

    async def _run(self, planner: Planner) -> None:
        try:
            await planner.run()
        except Exception as error:
            report_failure("recurring schedules", error, self._host.stop)

    def _parts(self) -> tuple[MessageStore, ScheduleTable, Clock]:
        running = self._started()
        return running.store, running.table, self._host.clock

    def _started(self) -> RunningSchedules:
        if self._running is None:
            master = self._host.master_address
            reason = NO_TIMERS if master is None else referral_text(master, "runs schedules")
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        return self._running

    async def _change(self, request: Request) -> Response:
        return await self._started().requests.handle(request)


class JournalDispatcher:
    """Dispatcher of the journal's topic: applies its records and wakes the planner."""

    def __init__(self, store: MessageStore, table: ScheduleTable, wake: Callable[[], None]) -> None:
        self._store, self._table, self._wake = store, table, wake
        self._topic = store.topics.add(SCHEDULES_TOPIC)

    def __call__(self, batch: PutBatch) -> None:
        rows = batch.filled
        for row in rows[(rows["topic_index"] == self._topic) & (rows["status"] == 0)]:
            offset = int(row["phys_offset"])
            self._table.apply(read_journal(self._store, offset), offset)
        self._wake()


def recovered_table(store: MessageStore) -> ScheduleTable:
    """Return the table of a store at the end of its log."""
    table = load_table(store)
    table.replay(store, lambda text: log.error("%s", text))
    table.read_newest_withdrawal(store)
    table.oldest_definition()  # reads all rows now, not while timers are due
    return table


def create_plugin(host: PluginHost) -> RecurringPlugin:
    """Return the plugin. The entry point of `duemq.broker_plugins`."""
    return RecurringPlugin(host)
