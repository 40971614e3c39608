"""The timer store as a broker plugin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from delayed_delivery.pending import PendingMessages
from delayed_delivery.plugin import PluginBase, PluginHost, Recalls, SystemTopic, every
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import from_properties, with_live
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import PERM_READ, QUARANTINE_TOPIC, TIMER_TOPIC
from message_store.hooks import PutHook
from message_store.retention.pins import UNKNOWN, FirstPending
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.checkpoint.snapshot import CHECK_BYTES, Check, SnapshotFiles, encode_check
from timer_store.checkpoint.standby import Standby
from timer_store.collector import StoreCollector
from timer_store.compaction.request import handle_compact
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.pending.lookup import PendingTimers
from timer_store.pending.recalls import TimerRecalls
from timer_store.pending.stopped_timers import NOT_RUNNING, NOTICE, StoppedTimers
from timer_store.store import TimerStore
from timer_store.stored_pin import stored_pin
from timer_store.views import admin_views

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
PERSIST_JOB, COMPACT_JOB = "timer_store.checkpoint.checkpoint_writer", "timer_store.compact"
LONG_VIEWS = ("summary", "list", "forecast")


class RunningTimers(Struct):
    """Components that exist while the store is open."""

    timers: TimerStore
    hook: TimerHook
    keeper: CheckpointWriter


class TimerPlugin(PluginBase):
    """Plugin of timers: messages with timer properties are delivered at their due millisecond."""

    name = "timer_store"

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self.config = from_properties(TimerConfig, host.properties)
        self._running: RunningTimers | None = None
        self._stored_pin: FirstPending = UNKNOWN  # pin while no timers run
        self._stopped: StoppedTimers | None = None
        self._recalls = TimerRecalls(self._timers)

    # -- plugin interface -----------------------------------------------------------------------

    def config_class(self) -> type:
        return TimerConfig

    def system_topics(self) -> Sequence[SystemTopic]:
        if not self.config.enabled:
            return ()
        return (SystemTopic(TIMER_TOPIC, 1), SystemTopic(QUARANTINE_TOPIC, 1, PERM_READ))

    def put_hooks(self) -> Sequence[PutHook]:
        return () if self._running is None else (self._running.hook,)

    def request_handlers(self) -> Mapping[int, RequestHandler]:
        return {
            RequestCode.GET_TIMER_CHECK_POINT: self._get_checkpoint,
            RequestCode.GET_TIMER_METRICS: self._get_metrics,
            RequestCode.COMPACT_TIMERS: self._compact,
        }

    def admin_views(self) -> Mapping[str, Callable[[], object]]:
        if not self.config.enabled:
            return dict.fromkeys(LONG_VIEWS, _refuse_view)
        return admin_views(self._timers, lambda: self._host.master_address)

    @property
    def parts(self) -> RunningTimers | None:
        """Running components while the store is open and timers are enabled, else None."""
        return self._running

    def _timers(self) -> TimerStore | None:
        return None if self._running is None else self._running.timers

    def recalls(self) -> Recalls | None:
        return self._recalls if self.config.enabled else None

    def pending_messages(self) -> PendingMessages | None:
        return self._stopped if self._running is None else PendingTimers(self._running.timers)

    def delivered_ms(self, now_ms: int) -> int:
        return 0 if self._running is None else self._running.timers.delivered_ms(now_ms)

    def first_pending_offset(self) -> FirstPending:
        if self._running is None:
            return self._stored_pin
        return self._running.timers.first_pending_offset

    def reconfigure(self, properties: Mapping[str, str]) -> None:
        """Apply a changed configuration; keys that are not live apply from the next start on.

        Raises:
            ConfigError: The configuration is invalid; nothing has changed.
        """
        config, _ = with_live(self.config, from_properties(TimerConfig, properties))
        if self._running is not None:
            self._running.timers.reconfigure(config)
            self._running.hook.reconfigure(config)
            self._running.timers.wake()
        self.config = config

    @asynccontextmanager
    async def following(self, store: MessageStore) -> AsyncIterator[None]:
        """Write checkpoints of a replica's timers while the block is open."""
        if not self.config.enabled:
            yield
            return
        standby = Standby(store, self._host.clock, self.config)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(standby.run(), name="timers of a replica")
            try:
                yield
            finally:
                standby.stop()

    @asynccontextmanager
    async def running(self, store: MessageStore) -> AsyncIterator[None]:
        """Recover, then deliver and write checkpoints while the block is open."""
        if not self.config.enabled:
            self._stored_pin = stored_pin(store)
            if self._stored_pin is not None:
                log.warning("%s", NOTICE)
                self._stopped = StoppedTimers(store, self._stored_pin)
            yield
            self._stopped = None
            return
        clock, scheduler = self._host.clock, self._host.scheduler
        timers = TimerStore(store, clock, self.config)
        timers.open(notice=log.warning)
        keeper = CheckpointWriter(timers)
        hook = TimerHook(
            store.topics, self.config, timers.units.wheel.num, pending_of=timers.counts.of_topic
        )
        await keeper.persist(last=True)  # the next start recovers from here
        async with timers.running(on_failure=self._host.stop, kernels=self._host.kernels):
            self._running = RunningTimers(timers, hook, keeper)
            store.add_dispatcher(timers.on_put, topic=TIMER_TOPIC)
            collector = StoreCollector(timers)
            self._host.metrics.register(collector)
            every(
                scheduler,
                self.config.flush_interval_ms,
                keeper.persist_in_turn,
                PERSIST_JOB,
                instances_max=2,
            )
            every(
                scheduler,
                store.config.clean_interval_ms,
                self._check_disk,
                COMPACT_JOB,
                instances_max=2,
            )
            try:
                yield
            finally:
                scheduler.remove_job(COMPACT_JOB)
                scheduler.remove_job(PERSIST_JOB)
                self._host.metrics.unregister(collector)
        self._running = None
        store.remove_dispatcher(timers.on_put, topic=TIMER_TOPIC)
        await keeper.persist_last()
        timers.close()

    # -- handlers and views ---------------------------------------------------------------------

    async def _get_checkpoint(self, request: Request) -> Response:
        """Handle request 60. Source: AdminBrokerProcessor.getTimerCheckPoint"""
        if self._running is None:
            return Response(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        return Response(body=encode_check(self._files().check or Check())[:CHECK_BYTES])

    async def _get_metrics(self, request: Request) -> Response:
        """Handle request 61, current counts. Source: AdminBrokerProcessor.getTimerMetrics"""
        if self._running is None:
            return Response(ResponseCode.SYSTEM_ERROR, "The timerMetrics is null")
        pending = self._running.timers.counts.by_topic()
        metrics = self._files().metrics.with_counts(pending, self._host.clock.now_ms())
        return Response(body=metrics.text().encode())

    async def _compact(self, request: Request) -> Response:
        """Handle request 9014. See `timer_store.compaction.request`."""
        if self._running is None:
            return Response(ResponseCode.SYSTEM_ERROR, "the timer store does not run")
        response = await handle_compact(self._running.timers, request)
        self._running.timers.wake()
        return response

    async def _check_disk(self) -> None:
        """Check whether old log files should be removed; scheduled as often as retention."""
        if self._running is not None and self._running.timers.compaction.begin_if_needed():
            self._running.timers.wake()

    def _files(self) -> SnapshotFiles:
        assert self._running is not None
        return self._running.timers.files


def _refuse_view() -> object:
    raise RequestError(ResponseCode.SYSTEM_ERROR, NOT_RUNNING)


def create_plugin(host: PluginHost) -> TimerPlugin:
    """Return the timer store's plugin. The entry point of `duemq.broker_plugins`."""
    return TimerPlugin(host)
