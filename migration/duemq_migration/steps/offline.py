"""Offline migration of a stopped store: Apache's 4.9 or 5.x, or DueMQ's.

    open the store (locked, recovered)  -->  levels and timers without deliveries
    start, drain, verify: as in a broker, at full speed  -->  checkpoints, files on the disk

The clock of levels and timers is fixed at the store time of the last record, or one hour ago if
that is later. Messages that became due since then are therefore not overdue: they are put into
their own slots, and the next broker, Apache's or DueMQ's, delivers them at once. The limit of one
hour is needed because Apache's broker skips slots that are more than a lap old. Records, plan, run
and ledger have the real time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from delayed_delivery.plugin import BrokerPlugin, JobScheduler, SystemTopic
from duemq_common.clock import Clock, FakeClock
from duemq_common.config import from_properties
from duemq_common.errors import CorruptStore, StoreError, UsageError
from duemq_common.existence import is_directory
from duemq_common.json_dialect import load_config
from duemq_common.ledger.identity import store_id
from duemq_common.ledger.location import FILE_NAME, LedgerLocation
from duemq_common.ledger.writer import RESPONSE_S, LedgerWriter
from duemq_common.topics import OWNERSHIP_TOPIC, TIMER_TOPIC
from duemq_migration.config import MigrationConfig
from duemq_migration.ledger.records import OFFLINE, MigrationRecord
from duemq_migration.ownership.moves import Migrations
from duemq_migration.ownership.owners import Owners
from duemq_migration.ownership.states import State
from duemq_migration.plans.counting import PlanCount
from duemq_migration.plans.plan import Plan, check, new_id
from duemq_migration.plans.plan_files import DIRECTORY as PLANS
from duemq_migration.steps.router import Router
from duemq_migration.steps.service import MigrationService, difference
from message_store.config import StoreConfig
from message_store.kernels.preparation import Preparation
from message_store.queues.consume_queues import is_topic_name
from message_store.store import MessageStore
from schedule_service.delay_offset_writer import DelayOffsetWriter
from schedule_service.plugin import SchedulePlugin
from schedule_service.queues import ScheduleQueues
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.store import TimerStore

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

TURNS_MAX: Final = 1_000_000
OVERDUE_MAX_MS: Final = 3_600_000
TOPICS_FILE: Final = "topics.json"
NOT_COPIED: Final = ("*/duemq.store.json*", f"config/{PLANS}/*")
"""Files that a copy leaves out: it is another store with a name, ledger and plans of its own."""
PAUSE_S: Final = 0.01


class OfflineStopped(StoreError):
    """Error: an offline migration stopped; the store is intact, and the same command continues."""

    def __init__(self, level: int, reason: str) -> None:
        self.level, self.reason = level, reason
        super().__init__(
            f"level {level}: {reason}. The store is intact; remove the cause and run the same "
            "command again to continue"
        )


@dataclass(frozen=True, slots=True)
class StoppedHost:
    """The `PluginHost` of a store without a broker."""

    clock: Clock
    properties: Mapping[str, str]
    store_root: str
    kernels: Preparation = field(default_factory=Preparation)
    master_address: str | None = None

    @property
    def scheduler(self) -> JobScheduler:
        """Raise, as no jobs run."""
        raise AssertionError("a stopped store has no jobs")

    @property
    def metrics(self) -> CollectorRegistry:
        """Raise, as there is no server of metrics."""
        raise AssertionError("a stopped store has no metrics")

    def plugin(self, name: str) -> BrokerPlugin | None:
        """Return None, as there are no other plugins."""
        return None

    def stop(self, reason: str) -> None:
        """Raise, as there is no broker to stop."""
        raise AssertionError(reason)


@dataclass(slots=True)
class OfflineResult:
    """Result of an offline migration.

    Attributes:
        moved: Number of messages moved, by level.
    """

    plan: Plan
    migration: str = ""
    moved: dict[int, int] = field(default_factory=dict)


def migrate_offline(
    root: Path,
    levels: Iterable[int],
    properties: Mapping[str, str],
    *,
    operator: str,
    now_ms: int,
    dry_run: bool = False,
    shown: Callable[[int, int, int], None] = lambda level, moved, left: None,
) -> OfflineResult:
    """Drain levels of a stopped store; without `levels`, all of them.

    Args:
        now_ms: Current time, in ms since the epoch.
        shown: Called with (level, moved, left) to report progress.

    Raises:
        UsageError: `root` is not a store, or a level does not exist.
        StoreLocked: A broker uses the store.
        OfflineStopped: The disk is full, or counts or checksums differ.
    """
    if not is_directory(root / "commitlog"):
        raise UsageError(f"{root} is not a store: it has no directory commitlog")
    wall = FakeClock(now_ms)
    with _opened(root, properties, wall) as (store, clock, owners, level_keeper):
        numbers = sorted(set(levels)) or sorted(owners.delays_ms)
        unknown = [level for level in numbers if level not in owners.delays_ms]
        if unknown:
            raise UsageError(f"no level {unknown[0]} here; there are 1 to {len(owners.delays_ms)}")
        count = PlanCount(owners, numbers, wall.now_ms())
        for _ in count.pieces():
            pass
        config_directory = store.config_path("")
        plan = count.plan(
            plan_id=new_id("plan", wall.now_ms(), secrets.token_bytes(2)),
            store_id="" if dry_run else store_id(Path(config_directory)),
            made_by=operator,
        )
        if dry_run:
            return OfflineResult(plan)
        check(plan, store_id=plan.store_id, delays_ms=owners.delays_ms, now_ms=wall.now_ms())
        work = _Work(root, store, clock, wall, owners, plan, operator, shown)
        return asyncio.run(work.run(numbers, level_keeper))


@contextmanager
def _opened(
    root: Path, properties: Mapping[str, str], wall: FakeClock
) -> Iterator[tuple[MessageStore, FakeClock, Owners, DelayOffsetWriter]]:
    config = replace(from_properties(StoreConfig, properties), root_text=str(root))
    clock = FakeClock(0)
    host = StoppedHost(clock, properties, str(root))
    plugin = SchedulePlugin(host)
    store = MessageStore(config, wall, tags_code_rules=plugin.tags_code_rules())
    with store:
        last_ms = store.appender.last_store_ms
        wall.set_ms(max(last_ms, wall.now_ms()))
        clock.set_ms(max(last_ms, wall.now_ms() - OVERDUE_MAX_MS))
        topics = (
            *plugin.system_topics(),
            SystemTopic(TIMER_TOPIC, 1),
            SystemTopic(OWNERSHIP_TOPIC, 1),
        )
        for topic in topics:
            store.topics.set_routing(
                topic.name, write_queues=topic.queues, read_queues=topic.queues, perm=topic.perm
            )
        _add_topics(store)
        parts = plugin.recovered(store)
        timers = TimerStore(store, clock, from_properties(TimerConfig, properties))
        timers.open()
        store.add_dispatcher(parts.service.on_put)
        store.add_dispatcher(timers.on_put)
        owners = Owners(
            store=store,
            levels=parts.service,
            timers=timers,
            queues=ScheduleQueues(store, plugin.history),
            history=plugin.history,
            keeper=CheckpointWriter(timers),
        )
        try:
            yield store, clock, owners, parts.keeper
        finally:
            timers.close()


def _add_topics(store: MessageStore) -> None:
    """Add the store's topics to the topic table, so that targets are found by their hash."""
    try:
        names = load_config(store.config_path(TOPICS_FILE), lambda v: list(v["topicConfigTable"]))
    except CorruptStore:
        return  # targets are read from the records instead
    for name in names or ():
        if isinstance(name, str) and is_topic_name(name):
            store.topics.add(name)


@dataclass(slots=True)
class _Work:
    """One offline run.

    Attributes:
        clock: Clock of levels and timers.
        wall: Clock of the machine.
    """

    root: Path
    store: MessageStore
    clock: FakeClock
    wall: FakeClock
    owners: Owners
    plan: Plan
    operator: str
    shown: Callable[[int, int, int], None]

    async def run(self, levels: list[int], level_keeper: DelayOffsetWriter) -> OfflineResult:
        """Migrate levels one after the other, and sync everything to the disk."""
        await self.owners.keeper.persist(last=True)
        service = self._service()
        run = new_id(OFFLINE, self.wall.now_ms(), secrets.token_bytes(2))
        ledger = service.ledger
        writing = asyncio.create_task(ledger.run(), name="migration ledger")
        try:
            await ledger.opened()
            ledger.write(
                self.plan,
                MigrationRecord(
                    migration_id=run,
                    plan_id=self.plan.plan_id,
                    mode=OFFLINE,
                    started_ms=self.wall.now_ms(),
                    started_by=self.operator,
                ),
            )
            service.owners_or_raise()
            moved = {level: await self._migrate_level(service, level, run) for level in levels}
        finally:
            await self.owners.keeper.persist_last()
            service.migrations.cover()
            await level_keeper.persist()
            await self.store.wait_durable(self.store.max_offset)
            await service.write()
            ledger.stop(RESPONSE_S)
            while not writing.done():
                self.wall.advance(1)  # the ledger's writer waits by this clock
                await asyncio.sleep(PAUSE_S)
        return OfflineResult(self.plan, run, moved)

    def _service(self) -> MigrationService:
        timers, store = self.owners.timers, self.store
        router = Router(store.topics, self.owners.history, precision_ms=timers.config.precision_ms)
        location = LedgerLocation(
            url=f"sqlite:///{self.root.absolute() / FILE_NAME}",
            store_id=self.plan.store_id,
            store_path=str(self.root),
        )

        ledger = LedgerWriter(
            location,
            clock=self.wall,
            snapshot=lambda: migrations.ledger.snapshot(),  # noqa: PLW0108  (made below)
        )
        migrations = Migrations(store, self.clock, router, on_change=ledger.write)
        config = MigrationConfig(target_p99_ms=0)
        return MigrationService(migrations, ledger, self.clock, config, lambda: self.owners)

    async def _migrate_level(self, service: MigrationService, level: int, run: str) -> int:
        migrations = service.migrations
        current = migrations.state_of(level)
        if current.state is State.PLANNED or current.is_rolled_back:
            migrations.start([level], {}, migration=run, operator=self.operator)
        elif current.state is State.ROLLING_BACK:
            raise OfflineStopped(level, "it is rolling back: start a broker, which completes that")
        elif current.paused:
            migrations.resume(level, operator=self.operator)
        before = self._transferred(service, level)
        for _ in range(TURNS_MAX):
            current = migrations.state_of(level)
            if not current.is_working:
                break
            if current.state is State.VERIFYING:
                verified = await service.verify(level)
                if not verified.is_right:
                    raise OfflineStopped(level, difference(verified))
                migrations.verified(level)
                continue
            migrations.step(level, service.throttle.batch_max)
            self.shown(
                level, self._transferred(service, level) - before, migrations.remaining(level)
            )
            await self._unblock(service, level)
        return self._transferred(service, level) - before

    async def _unblock(self, service: MigrationService, level: int) -> None:
        """Write a checkpoint for a blocked step; raise if the step is still blocked."""
        reason = service.migrations.blocked_by.get(level, "")
        if not reason:
            return
        await self.owners.keeper.persist(last=True)
        service.migrations.step(level, service.throttle.batch_max)
        if service.migrations.blocked_by.get(level, ""):
            raise OfflineStopped(level, service.migrations.blocked_by[level])

    def _transferred(self, service: MigrationService, level: int) -> int:
        projection = service.migrations.journal.levels.get(level)
        return 0 if projection is None else projection.transferred
