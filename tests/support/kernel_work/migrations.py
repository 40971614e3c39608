"""Workload of a migration: levels to timers and back."""

from __future__ import annotations

from pathlib import Path

from delayed_delivery.pending import HitQuery
from duemq_common.clock import FakeClock
from duemq_common.topics import SCHEDULE_TOPIC
from duemq_migration.steps.drain import Drain
from duemq_migration.steps.return_units import RoutedReturn, UnitReturn
from duemq_migration.steps.router import Router
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from schedule_service.config import ScheduleConfig
from schedule_service.delivery import LevelService
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.put_hook import LevelHook
from schedule_service.queues import ScheduleQueues
from schedule_service.recovery import Saved, Start, restore
from schedule_service.tags_code_rule import LevelRule
from timer_store.config import TimerConfig
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

LEVEL, LEVELS = 2, "1s 1m"
HOST = (b"\x7f\x00\x00\x01", 1)


def migrate_levels(root: Path) -> None:
    """Transfer a level's messages, return them, and reopen the store."""
    config = StoreConfig(
        root_text=str(root),
        commitlog_file_bytes=65_536,
        queue_file_bytes=4_000,
        index_slots_max=64,
        index_entries_max=4_096,
    )
    history = LevelHistory([LevelText(0, LEVELS)])
    rules = (LevelRule(SCHEDULE_TOPIC, history.tables),)
    with MessageStore(config, FakeClock(), tags_code_rules=rules) as store:
        _use(store, history)
    (root / "config" / "duemq.mark").unlink()
    with MessageStore(config, FakeClock(), tags_code_rules=rules):
        pass  # until all returned records are queued


def _use(store: MessageStore, history: LevelHistory) -> None:
    queues = ScheduleQueues(store, history)
    cursors = restore(store, queues, Start(Saved(), 0))
    levels = LevelService(
        store, queues, store.clock, ScheduleConfig(levels=LEVELS), cursors, on_failure=_ignore
    )
    timers = TimerStore(store, store.clock, TimerConfig(log_file_bytes=2_600))
    timers.open(notice=_ignore)
    router = Router(store.topics, history, precision_ms=timers.config.precision_ms)
    hook = LevelHook(store.topics, history)

    def send() -> None:
        batch = _batch(store)
        router(batch, store.clock.now_ms())
        hook(batch, store.clock.now_ms())
        store.put(batch)
        levels.on_put(batch)
        timers.on_put(batch)

    send()
    Drain(levels, timers, store, store.clock, wake=_nothing).step(LEVEL, 8)
    PendingTimers(timers).search(HitQuery(topic="T"), "q1.0.8")
    UnitReturn(levels, timers, store, store.clock).step(LEVEL, 8)
    router.begin(store, queues, timers, LEVEL, {"T": 70_000}, store.clock.now_ms())
    send()
    RoutedReturn(router, timers, store, store.clock, wake=_nothing).step(LEVEL, 8)
    timers.close()


def _batch(store: MessageStore) -> PutBatch:
    batch = PutBatch(4)
    for number in range(4):
        batch.add(
            topic_index=store.topics.add("TU"[number % 2]),
            queue_id=0,
            body=b"x",
            properties=encode_properties({"UNIQ_KEY": f"M{number}", "DELAY": str(LEVEL)}),
            born_ms=1,
            born_host=HOST,
            store_host=HOST,
        )
    return batch


def _nothing() -> None:
    """Do nothing instead of sleeping."""


def _ignore(text: str) -> None:
    """Do nothing."""
