"""Store with levels, timers and migrations on a fake clock, without a broker and tasks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from delayed_delivery import ownership
from delayed_delivery.ownership_projection import JournalProjection, LevelProjection
from duemq_common.clock import FakeClock
from duemq_common.topics import DECISION_TOPIC, OWNERSHIP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duemq_migration.ownership import projection
from duemq_migration.steps.drain import Drain
from duemq_migration.steps.return_units import RoutedReturn, UnitReturn
from duemq_migration.steps.router import Router
from duemq_migration.steps.verification import Verification, Verified
from message_store.log.batch import PutBatch
from schedule_service.config import ScheduleConfig
from schedule_service.cursor import NEVER_MS
from schedule_service.decisions import PendingLevels
from schedule_service.delay_offset_writer import DelayOffsetWriter
from schedule_service.delivery import LevelService
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.plugin import SCHEDULE_QUEUES
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
from tests.support.inline_loop import run_inline
from tests.support.stores import add_message, crash, open_store, records_of
from tests.support.synchronous import Synchronous
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

LEVELS = "1s 5s 10s 1m 2m"
LOG_FILE_BYTES = 2_600  # 49 units
TURNS_MAX = 100_000


OPENED: list[MigrationRig] = []
"""Rigs that were opened since `kill_opened`."""


def kill_opened() -> None:
    """End the rigs that are still open, so that their files do not stay open for the whole run."""
    while OPENED:
        rig = OPENED.pop()
        if rig.is_open:
            with suppress(Exception):  # the test may have ended the store by itself
                rig.kill()


class MigrationRig:
    """Store with levels and timers, which can be closed or killed, and reopened."""

    def __init__(
        self, root: Path, clock: Any = None, *, levels: str = LEVELS, **timers: Any
    ) -> None:
        self.root, self.clock = root, clock or FakeClock()
        self.timer_config = TimerConfig(**({"log_file_bytes": LOG_FILE_BYTES} | timers))
        self.level_config = ScheduleConfig(levels=levels)
        self.store_changes: dict[str, Any] = {}
        self.topics = ["T", "U"]
        self.history = LevelHistory([LevelText(0, levels)])
        self.notices: list[str] = []
        self.failures: list[str] = []
        self.is_open = False

    def open(self) -> MigrationRig:
        """Recover both services and deliver due messages."""
        rules = (LevelRule(SCHEDULE_TOPIC, self.history.tables),)
        self.store = open_store(
            self.root,
            self.clock,
            rules,
            flush_commitlog_interval_ms=100_000_000,
            **self.store_changes,
        )
        self.store.__enter__()
        OPENED.append(self)
        topics = self.store.topics
        for name, count in ((SCHEDULE_TOPIC, SCHEDULE_QUEUES), (DECISION_TOPIC, 1)):
            topics.set_routing(name, write_queues=count, read_queues=count, perm=6)
        for name in (TIMER_TOPIC, OWNERSHIP_TOPIC):
            topics.set_routing(name, write_queues=1, read_queues=1, perm=6)
        for name in self.topics:
            topics.set_routing(name, write_queues=4, read_queues=4, perm=6)
        self._open_levels()
        self._open_timers()
        self.router = Router(topics, self.history, precision_ms=self.timer_config.precision_ms)
        journal = JournalProjection()
        for entry in ownership.read(self.store):  # retained records only
            journal = journal.after(entry)
        for level in journal.levels.values():
            self.router.set_route(level)
        self.drain = Drain(self.levels, self.timers, self.store, self.clock, wake=lambda: None)
        self.return_units = UnitReturn(self.levels, self.timers, self.store, self.clock)
        self.routed_return = RoutedReturn(
            self.router, self.timers, self.store, self.clock, wake=lambda: None
        )
        self.hooks = (
            self.router,
            LevelHook(topics, self.history),
            TimerHook(topics, self.timer_config, self.timers.units.wheel.num),
        )
        self.store.add_dispatcher(self._dispatch)
        self.is_open = True
        self.work()
        return self

    def _open_levels(self) -> None:
        queues = ScheduleQueues(self.store, self.history)
        ends = {level: queues.bounds(level)[1] for level in queues.levels}
        start = find_start(self.store, {}, load_saved(self.store))
        start = replace(start, saved=limited(start.saved, ends))
        journal = list(ownership.read(self.store))
        cursors = restore(self.store, queues, start, journal)
        self.levels = LevelService(
            self.store,
            queues,
            self.clock,
            self.level_config,
            cursors,
            on_failure=self.failures.append,
        )
        self.levels.transfers.restore(journal, start.saved.offsets)
        self.offsets = DelayOffsetWriter(
            self.store, self.clock, self.levels, start.saved or Saved(), version_step=500
        )
        self.pending_levels = Synchronous(
            PendingLevels(self.store, queues, self.levels, self.clock)
        )
        self.queues = queues

    def _open_timers(self) -> None:
        self.timers = TimerStore(self.store, self.clock, self.timer_config)
        self.timers.open(notice=self.notices.append)
        self.keeper = CheckpointWriter(self.timers)
        assert self.persist_timers(last=True)
        self.pending_timers = Synchronous(PendingTimers(self.timers))

    def _dispatch(self, batch: PutBatch) -> None:
        self.levels.on_put(batch)
        self.timers.on_put(batch)

    def close(self) -> None:
        """Close cleanly, like a broker."""
        assert self.persist_timers(last=True)
        assert self.persist_levels()
        self.timers.close()
        self.store.__exit__(None, None, None)
        self.is_open = False

    def kill(self) -> None:
        """End like a killed process."""
        self.timers.close()
        crash(self.store)
        self.is_open = False

    def persist_timers(self, *, last: bool = False) -> bool:
        """Write a checkpoint of the timers."""
        done = run_inline(self.keeper.persist(last=last))
        self.levels.transfers.on_checkpoint(self.keeper.handover_offset)
        return done

    def persist_levels(self) -> bool:
        """Write delayOffset.json."""
        return run_inline(self.offsets.persist())

    # -- work -----------------------------------------------------------------------------------

    def send(self, messages: list[tuple[int, str, int, bytes]], **extra: str) -> PutBatch:
        """Send (level, topic, queue, body) in one batch through all hooks."""
        batch = PutBatch(max(len(messages), 1))
        for level, topic, queue_id, body in messages:
            properties = {"DELAY": str(level), "WAIT": "true", **extra}
            add_message(self.store, batch, topic, queue_id, body, properties=properties)
        return self.put(batch)

    def route(self, level: int, **rules: int) -> None:
        """Route new messages of a level to timers."""
        self.router.begin(self.store, self.queues, self.timers, level, rules, self.clock.now_ms())

    def run_hooks(self, batch: PutBatch, now_ms: int) -> None:
        """Run all put hooks on a batch."""
        for hook in self.hooks:
            hook(batch, now_ms)

    def put(self, batch: PutBatch) -> PutBatch:
        """Put a batch through all hooks."""
        self.run_hooks(batch, self.clock.now_ms())
        self.store.put(batch)
        return batch

    def work(self) -> None:
        """Run both services until they have no more work at this time."""
        for _ in range(TURNS_MAX):
            moved = self._work_levels()
            moved = self.timers.turn(self.clock.now_ms()) or moved
            if not moved:
                return
        raise AssertionError("the services do not become idle")

    def _work_levels(self) -> bool:
        now_ms = self.clock.now_ms()
        due = self.levels.due_levels(now_ms)
        before = self.store.max_offset
        for level in due:
            self.levels.deliver_or_retry(level, now_ms)
        self.levels.acknowledge_to(self.store.max_offset)
        return self.store.max_offset > before

    def next_work_ms(self) -> int:
        """Return the time of the next work."""
        levels = self.levels.levels.values()
        times = [level.next_work_ms(self.level_config) for level in levels]
        return min([NEVER_MS, *times, self.timers.next_work_ms(self.clock.now_ms())])

    def advance(self, step_ms: int) -> None:
        """Advance the clock from wakeup to wakeup of the services."""
        end_ms = self.clock.now_ms() + step_ms
        self.work()
        while (next_ms := self.next_work_ms()) <= end_ms:
            next_ms = max(next_ms, self.clock.now_ms() + 1)
            if next_ms > end_ms:
                break
            self.clock.set_ms(next_ms)
            self.work()
        self.clock.set_ms(max(end_ms, self.clock.now_ms()))
        self.work()

    def verify(self, level: int) -> Verified:
        """Count both sides of a level."""
        folded = projection.restore(self.store).levels.get(level, LevelProjection(level=level))
        counting = Verification(self.levels, self.timers, self.store, level, folded)
        assert all(size >= 0 for size in counting.pieces())
        assert counting.result is not None
        return counting.result

    # -- state ----------------------------------------------------------------------------------

    @property
    def level_pending(self) -> int:
        """Return the number of pending messages of the level service."""
        return sum(level.cursor.pending for level in self.levels.levels.values())

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Any]:
        """Return the records of a queue."""
        return records_of(self.store, topic, queue_id)

    def delivered(self) -> list[Any]:
        """Return the records of all real topics."""
        return [
            record
            for topic in self.topics
            for queue in range(4)
            for record in self.records(topic, queue)
        ]
