"""The level service as a broker plugin."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from delayed_delivery import ownership
from delayed_delivery.level_delays import LEVELS_KEY
from delayed_delivery.outcome import DeliveryStats
from delayed_delivery.pending import PendingMessages
from delayed_delivery.plugin import (
    ParameterizedView,
    PluginBase,
    PluginHost,
    SystemTopic,
    every,
)
from delayed_delivery.steps import Steps
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import from_properties
from duemq_common.errors import ConfigError, CorruptStore, RequestError
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import (
    DECISION_TOPIC,
    HALF_TOPIC,
    LEVELS_TOPIC,
    PERM_READ,
    QUARANTINE_TOPIC,
    SCHEDULE_TOPIC,
)
from message_store.hooks import PutHook, TagsCodeRule
from message_store.retention.pins import UNKNOWN, FirstPending
from schedule_service import level_journal
from schedule_service.collector import LevelCollector
from schedule_service.config import ScheduleConfig
from schedule_service.decisions import PendingLevels
from schedule_service.delay_offset_writer import DelayOffsetWriter
from schedule_service.delivery import LevelService
from schedule_service.forecast import forecast_view
from schedule_service.level import Level
from schedule_service.level_tables import LevelTables
from schedule_service.listing import list_view
from schedule_service.put_hook import LevelHook
from schedule_service.queues import ScheduleQueues
from schedule_service.recovery import (
    Saved,
    find_start,
    limited,
    load_saved,
    restore,
)
from schedule_service.tags_code_rule import LevelRule
from schedule_service.views import levels_view, runtime_view

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
PERSIST_JOB = "schedule_service.persist"
TABLES_JOB = "schedule_service.tables"
TABLES_MS = 3_000
SCHEDULE_QUEUES = 18  # queues at the creation of the topic; higher levels add more


class Running(Struct):
    """Components that exist while the store is open."""

    store: MessageStore
    hook: LevelHook
    service: LevelService
    keeper: DelayOffsetWriter
    pending_levels: PendingLevels


class SchedulePlugin(PluginBase):
    """Delay levels: redirect at put, deliver when due."""

    name = "schedule_service"
    before = ("timer_store",)  # a level precedes a time in the same message

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self.config = from_properties(ScheduleConfig, host.properties)
        self.tables = LevelTables(Path(host.store_root), self.config.levels)
        self.history = self.tables.history
        self._running: Running | None = None
        self._offsets_rejected = False  # delayOffset.json is invalid, because the log lost its end

    # -- plugin interface -----------------------------------------------------------------------

    def config_class(self) -> type:
        return ScheduleConfig

    def system_topics(self) -> Sequence[SystemTopic]:
        return (
            SystemTopic(SCHEDULE_TOPIC, SCHEDULE_QUEUES),
            SystemTopic(QUARANTINE_TOPIC, 1, PERM_READ),
            SystemTopic(DECISION_TOPIC, 1, PERM_READ),
            SystemTopic(LEVELS_TOPIC, 1, PERM_READ),
        )

    def tags_code_rules(self) -> Sequence[TagsCodeRule]:
        return (LevelRule(SCHEDULE_TOPIC, self.history.tables),)

    def put_hooks(self) -> Sequence[PutHook]:
        return () if self._running is None else (self._running.hook,)

    def request_handlers(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.GET_ALL_DELAY_OFFSET: self._get_delay_offsets}

    def admin_views(self) -> Mapping[str, Callable[[], object]]:
        return {
            "levels": self._levels_view,
            "list": ParameterizedView(self._list_view),
            "forecast": ParameterizedView(self._forecast_view),
            "history": self._history_view,
            "runtime": self._runtime_view,
        }

    @property
    def parts(self) -> Running | None:
        """Running components while the store is open, None before and afterwards."""
        return self._running

    def pending_messages(self) -> PendingMessages | None:
        return None if self._running is None else self._running.pending_levels

    def first_pending_offset(self) -> FirstPending:
        if self._running is None:
            return UNKNOWN
        return self._running.service.first_pending_offset(self._running.keeper.durable)

    def reconfigure(self, properties: Mapping[str, str]) -> None:
        """Apply a changed configuration; pending messages keep their due times.

        Raises:
            ConfigError: The configuration is invalid; nothing has changed.
        """
        config = from_properties(ScheduleConfig, properties)
        if self._running is not None:
            self.tables.change(config.levels, self._running.store)
            self._running.service.reconfigure(config)
        self.config = config

    def open_replica(self, store: MessageStore) -> None:
        self.tables.open_replica(store)

    def follow_master(
        self, properties: Mapping[str, str], store: MessageStore, log_end: int
    ) -> None:
        """Apply the levels of a master from the end of this log on.

        Raises:
            ConfigError: The master's levels are invalid.
            OSError: A file cannot be written.
        """
        self.tables.apply_newest(store)
        if LEVELS_KEY in properties:
            self.tables.follow(properties[LEVELS_KEY], store, log_end)

    @asynccontextmanager
    async def running(self, store: MessageStore) -> AsyncIterator[None]:
        """Recover, then deliver while the block is open; save progress at intervals and the end."""
        running, scheduler = self.recovered(store), self._host.scheduler
        if self._offsets_rejected:  # replace it before the log grows past its offset again
            await running.keeper.persist()
        async with running.service.running():
            self._running = running
            store.add_dispatcher(running.service.on_put, topic=SCHEDULE_TOPIC)
            collector = LevelCollector(self._stats)
            self._host.metrics.register(collector)
            every(scheduler, self.config.persist_interval_ms, running.keeper.persist, PERSIST_JOB)
            every(scheduler, TABLES_MS, self._check_log, TABLES_JOB)
            try:
                yield
            finally:
                scheduler.remove_job(TABLES_JOB)
                scheduler.remove_job(PERSIST_JOB)
                self._host.metrics.unregister(collector)
        self._running = None
        store.remove_dispatcher(running.service.on_put, topic=SCHEDULE_TOPIC)
        await running.keeper.persist()

    async def _check_log(self) -> None:
        if self._running is not None:
            self.tables.check_log(self._running.store)

    # -- start ----------------------------------------------------------------------------------

    def recovered(self, store: MessageStore) -> Running:
        """Recover and return the components without starting them."""
        saved = self._load_saved(store)
        queues = ScheduleQueues(store, self.history)
        ends = {level: queues.bounds(level)[1] for level in queues.levels}
        tables = self.tables
        if tables.adopted is not None:
            tables.adopted = dict(limited(Saved(offsets=tables.adopted), ends).offsets)
        start = find_start(store, tables.adopted, saved)
        journal = list(ownership.read(store))
        reached = level_journal.advanced(start.saved, level_journal.newest(store), journal)
        start = replace(start, saved=limited(reached, ends))
        is_apaches = saved is not None and saved.log_offset is None
        self._offsets_rejected = saved is not None and not is_apaches and start.saved is not saved
        if start.claims is not None:
            claims = limited(Saved(offsets=start.claims), ends)
            tables.adopted = dict(claims.offsets)
        self._apply_tables(store)
        cursors = restore(store, queues, start, journal)
        service = LevelService(
            store,
            queues,
            self._host.clock,
            self.config,
            cursors,
            on_failure=self._host.stop,
        )
        service.transfers.restore(journal, start.saved.offsets)
        tables.delivered = lambda: {
            number: level.cursor.first_undelivered for number, level in service.levels.items()
        }
        tables.follows_apache = is_apaches
        tables.check_log(store)
        keeper = DelayOffsetWriter(
            store, self._host.clock, service, start.saved, version_step=self.config.version_step
        )
        hook = LevelHook(store.topics, self.history, (tables, store))
        store.topics.add(HALF_TOPIC)
        pending = sum(cursor.pending for cursor in cursors.values())
        log.info("levels %s; %d messages pending", self.history.text, pending)
        pending_levels = PendingLevels(store, queues, service, self._host.clock)
        return Running(store, hook, service, keeper, pending_levels)

    def _apply_tables(self, store: MessageStore) -> None:
        """Apply the level tables of a former master, then the configuration to later messages.

        Raises:
            ConfigError: delayLevels.json cannot be written.
        """
        try:
            self.tables.apply_newest(store)
        except OSError as error:
            reason = f"the level tables of a former master cannot be written: {error}"
            raise ConfigError(LEVELS_KEY, self.config.levels, reason) from error
        self.tables.adopted = self.tables.adopted or {}
        self.tables.change(self.config.levels, store, write=True)

    @staticmethod
    def _load_saved(store: MessageStore) -> Saved | None:
        try:
            return load_saved(store)
        except CorruptStore as error:
            log.error("%s The progress of levels is read from the log instead.", error)
            return None

    # -- handlers and views ---------------------------------------------------------------------

    async def _get_delay_offsets(self, request: Request) -> Response:
        """Handle request 45. Source: AdminBrokerProcessor.getAllDelayOffset"""
        if self._running is None or self._running.service.has_failed:
            return Response(ResponseCode.SYSTEM_ERROR, "levels do not run here now: use the master")
        return Response(body=self._running.keeper.text().encode())

    def _stats(self) -> dict[int, tuple[DeliveryStats, int, int | None]]:
        next_due_ms = self._next_due_ms
        levels = self._levels().items()
        return {n: (level.stats, level.cursor.pending, next_due_ms(level)) for n, level in levels}

    def _next_due_ms(self, level: Level) -> int | None:
        return None if self._running is None else self._running.service.next_due_ms(level)

    def _levels(self) -> Mapping[int, Level]:
        if self._running is None:
            return {}
        self._running.service.correct_heads()
        return self._running.service.levels

    def _levels_view(self) -> dict[str, object]:
        return levels_view(
            self._levels(),
            self.history.delays_ms,
            self.config,
            self._host.clock.now_ms(),
            self._next_due_ms,
        )

    def _list_view(
        self, fields: Mapping[str, str]
    ) -> Steps[dict[str, object]] | Coroutine[None, None, dict[str, object]]:
        running, now_ms = self._parts_of_view(), self._host.clock.now_ms()
        return list_view(running.pending_levels, running.store, fields, now_ms)

    def _forecast_view(self, fields: Mapping[str, str]) -> Steps[dict[str, object]]:
        running, now_ms = self._parts_of_view(), self._host.clock.now_ms()
        queues = ScheduleQueues(running.store, self.history)
        return forecast_view(queues, running.service.levels, fields, now_ms)

    def _parts_of_view(self) -> Running:
        """Return the running components.

        Raises:
            RequestError: There are none.
        """
        if self._running is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "levels do not run here now: use the master"
            )
        return self._running

    def _history_view(self) -> dict[str, object]:
        if self._running is None:
            return {}
        return self._running.service.history.view(self._host.clock.now_ms())

    def _runtime_view(self) -> dict[str, str]:
        return runtime_view(self._levels())


def create_plugin(host: PluginHost) -> SchedulePlugin:
    """Return the level service's plugin. The entry point of `duemq.broker_plugins`."""
    return SchedulePlugin(host)
