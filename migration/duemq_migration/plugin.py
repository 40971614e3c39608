"""Migration plugin: routes levels, and runs migrations, while the broker runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from delayed_delivery.plugin import PluginBase, PluginHost, SystemTopic, every
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import from_properties, with_live
from duemq_common.errors import CorruptStore, RequestError
from duemq_common.ledger.identity import store_id
from duemq_common.ledger.location import FILE_NAME, LedgerLocation
from duemq_common.ledger.writer import LedgerWriter
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import OWNERSHIP_TOPIC, PERM_READ
from duemq_migration.collector import MigrationCollector
from duemq_migration.config import MigrationConfig
from duemq_migration.ownership.moves import Migrations
from duemq_migration.ownership.owners import NoOwners, find_owners, plugins_of
from duemq_migration.requests import referral, replica_text
from duemq_migration.steps.operations import Operations
from duemq_migration.steps.router import Router
from duemq_migration.steps.service import MigrationService
from duemq_migration.views import runtime_view, status_view
from message_store.hooks import PutHook

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
WRITE_JOB = "migration.write"
WRITE_MS = 5_000
LEDGER_STOP_S = 0.2
"""Maximum time, in s, for which a stop, or a change of role, waits for the ledger."""


class RunningMigration(Struct):
    """Components that exist while the store is open and both services run."""

    service: MigrationService
    operations: Operations
    ledger: LedgerWriter
    router: Router


class MigrationPlugin(PluginBase):
    """Plugin that migrates levels to timers and back while the broker runs."""

    name = "migration"
    before = ("schedule_service", "timer_store")  # a routed message has no level

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self.config = from_properties(MigrationConfig, host.properties)
        self._running: RunningMigration | None = None
        self._why_not = "the broker has not started"

    # -- plugin interface -----------------------------------------------------------------------

    def config_class(self) -> type:
        return MigrationConfig

    def system_topics(self) -> Sequence[SystemTopic]:
        return (SystemTopic(OWNERSHIP_TOPIC, 1, PERM_READ),)

    def put_hooks(self) -> Sequence[PutHook]:
        return () if self._running is None else (self._running.router,)

    def request_handlers(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.MIGRATE: self._handle}

    def admin_views(self) -> Mapping[str, Callable[[], object]]:
        return {"status": self._status_view, "runtime": self._runtime_view}

    @property
    def parts(self) -> RunningMigration | None:
        """Components that exist while the store is open and both services run, else None."""
        return self._running

    def reconfigure(self, properties: Mapping[str, str]) -> None:
        """Apply a changed configuration; keys that are not live apply from the next start on.

        Raises:
            ConfigError: The configuration is invalid; nothing has changed.
        """
        self.config, _ = with_live(self.config, from_properties(MigrationConfig, properties))
        if self._running is not None:
            self._running.service.reconfigure(self.config)

    @asynccontextmanager
    async def running(self, store: MessageStore) -> AsyncIterator[None]:
        """Route messages and run migrations while the block is open."""
        try:
            self._running = running = self._start(store)
        except NoOwners as error:
            self._why_not = str(error)
            log.info("migrations are not possible: %s", error)
            yield
            return
        collector = MigrationCollector(running.service)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.ledger.run(), name="migration ledger")
            tasks.create_task(self._guard(running.service), name="migration")
            self._host.metrics.register(collector)
            every(self._host.scheduler, WRITE_MS, running.service.write, WRITE_JOB)
            try:
                yield
            finally:
                self._host.scheduler.remove_job(WRITE_JOB)
                self._host.metrics.unregister(collector)
                running.service.stop()
                running.ledger.stop(LEDGER_STOP_S)
        self._running = None
        await running.service.write()

    def _start(self, store: MessageStore) -> RunningMigration:
        levels, timers = plugins_of(self._host)
        clock = self._host.clock
        router = Router(store.topics, levels.history, precision_ms=timers.config.precision_ms)

        location = self._location(store)
        ledger = LedgerWriter(
            location,
            clock=clock,
            snapshot=lambda: migrations.ledger.snapshot(),  # noqa: PLW0108  (made below)
            refusal="" if location.store_id else "the store has no name: see the log of the start",
        )
        migrations = Migrations(store, clock, router, on_change=ledger.write)
        if migrations.journal.levels:  # bring the ledger to the state of the log, for earlier runs
            ledger.write(*migrations.ledger.snapshot().records())
        service = MigrationService(
            migrations, ledger, clock, self.config, lambda: find_owners(self._host, store)
        )
        operations = Operations(service, clock, Path(store.config_path("")))
        return RunningMigration(service, operations, ledger, router)

    def _location(self, store: MessageStore) -> LedgerLocation:
        try:
            name = store_id(Path(store.config_path("")))
        except (CorruptStore, OSError) as error:  # a full disk does not stop a broker's start
            log.error("%s No migration starts until the store has a name.", error)
            name = ""
        path = Path(self._host.store_root).absolute() / FILE_NAME
        url = self.config.ledger_url or f"sqlite:///{path}"
        return LedgerLocation(url=url, store_id=name, store_path=str(self._host.store_root))

    # -- handlers and views ---------------------------------------------------------------------

    async def _guard(self, service: MigrationService) -> None:
        """Report a failure of the task, so that the broker stops in order."""
        try:
            await service.run()
        except Exception as error:
            log.exception("the migration cannot continue")
            self._host.stop(f"{type(error).__name__}: {error}")

    async def _handle(self, request: Request) -> Response:
        if self._running is None:
            if (master := self._host.master_address) is not None:
                return referral(master)
            raise RequestError(ResponseCode.SYSTEM_ERROR, self._why_not)
        return await self._running.operations.response(request)

    def _status_view(self) -> dict[str, object]:
        if self._running is None:
            master = self._host.master_address
            why_not = self._why_not if master is None else replica_text(master)
            return {"levels": [], "active": [], "why_not": why_not}
        return status_view(self._running.service)

    def _runtime_view(self) -> dict[str, str]:
        return {} if self._running is None else runtime_view(self._running.service)


def create_plugin(host: PluginHost) -> MigrationPlugin:
    """Return the migration plugin. The entry point of `duemq.broker_plugins`."""
    return MigrationPlugin(host)
