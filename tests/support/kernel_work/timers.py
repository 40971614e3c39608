"""Workload on timers: puts, deliveries, rolls and decisions."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import cast
from unittest.mock import patch

import numpy as np

from delayed_delivery.pending import HitQuery
from delayed_delivery.plugin import ParameterizedView
from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.config import StoreConfig
from message_store.index.key_search import are_owned, query_of
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from message_store.verify import verify_store
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.enqueue.adoption import settled
from timer_store.enqueue.put_hook import TimerHook
from timer_store.layout import UNIT_BYTES
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore
from timer_store.verify import TIMERS
from timer_store.views import admin_views

LOOPBACK = (b"\x7f\x00\x00\x01", 1)
CONFIG = TimerConfig(
    log_file_bytes=2_600, roll_window_slots=2, stage_records_max=1_024, batch_records_max=4
)
DELAYS_MS = (1, 1, 300, 1_500, 4_000, 9_000, 3_600_000)
SPIKE = 1_200  # exceeds the capacity of the near stage, so that the slot is read in parts


def deliver_timers(root: Path) -> None:
    """Delay and deliver timers: a few, and more than the near stage can load at once."""
    _use(root, FakeClock(), crash=False, decide=False)


def use_timers(root: Path) -> None:
    """Deliver, decide on, list and recover timers."""
    clock = FakeClock()
    for number in range(3):
        _use(root, clock, crash=number > 0, decide=True)
        if number == 1:  # the wheel is rebuilt
            (root / "timerwheel").unlink()
    log = min((root / "timerlog").iterdir())
    log.write_bytes(bytes(UNIT_BYTES) + log.read_bytes()[UNIT_BYTES:])
    verify_store(root, parts=[TIMERS])


def _use(root: Path, clock: FakeClock, *, crash: bool, decide: bool) -> None:
    config = StoreConfig(
        root_text=str(root),
        commitlog_file_bytes=65_536,
        queue_file_bytes=4_000,
        index_slots_max=64,
        index_entries_max=4_096,
    )
    with MessageStore(config, clock) as store:
        for name in (TIMER_TOPIC, "T", "U"):
            store.topics.set_routing(name, write_queues=1, read_queues=1, perm=6)
        timers = TimerStore(store, clock, CONFIG)
        timers.open(notice=_ignore)
        keeper = CheckpointWriter(timers)
        store.add_dispatcher(lambda batch: _note(timers, batch))
        hook = TimerHook(store.topics, CONFIG, timers.units.wheel.num)
        _put(store, hook, clock, DELAYS_MS)
        asyncio.run(keeper.persist(last=True))
        _put(store, hook, clock, tuple(2_500 - number % 7 for number in range(SPIKE)))
        if decide:
            asyncio.run(_decide(timers, clock))
            _look(timers)
        for _ in range(40):
            clock.advance(100)
            while timers.turn(clock.now_ms()):
                pass
        if decide:
            _fill_disk(timers, store, hook, clock)
        if not crash:
            asyncio.run(keeper.persist_last())
            if decide:
                settled(timers.state)
        timers.close()


async def _decide(timers: TimerStore, clock: FakeClock) -> None:
    """Cancel, move and fire timers, found by each kind of lookup, staged or not."""
    pending = PendingTimers(timers)
    for _ in range(2):
        selection = await pending.by_key("T", ["W0", "W4", "W6", "none"], unique=True)
        pending.cancel(selection.offsets[:2])
        await pending.by_key("T", ["W0"], unique=False)
        query = HitQuery(topic="U", until_ms=clock.now_ms() + 5_000)
        pending.search(query, "")
        part = pending.search(query, "0_0_-1_-1_0")
        assert are_owned(timers.store, part.offsets, query_of("U", part.keys), 0).all()
        moved, fired = part.offsets[::2].copy(), part.offsets[1:4:2].copy()
        later = np.full(moved.size, clock.now_ms() + 6_000)
        pending.move(moved, later, lambda batch, now_ms: None)
        pending.fire(fired)
        await pending.by_offset(part.offsets[:8])
        clock.advance(100)
        timers.turn(clock.now_ms())


def _fill_disk(timers: TimerStore, store: MessageStore, hook: TimerHook, clock: FakeClock) -> None:
    """Make the timer log refuse a unit."""
    log = timers.units.log
    with patch.object(type(log), "append", side_effect=OSError(errno.ENOSPC, "full")):
        _put(store, hook, clock, (5_000,))
        timers.turn(clock.now_ms())


def _look(timers: TimerStore) -> None:
    """List pending timers in large and small slots, and forecast them."""
    views = admin_views(lambda: timers, lambda: None)
    views["summary"]()
    for name, fields in (("list", {}), ("list", {"topic": "T"}), ("forecast", {"count": "2"})):
        cast(ParameterizedView, views[name])(fields)


def _note(timers: TimerStore, batch: PutBatch) -> None:
    timers.on_put(batch)


def _ignore(text: str) -> None:
    """Ignore notices of deliberate damage."""


def _put(store: MessageStore, hook: TimerHook, clock: FakeClock, delays: tuple[int, ...]) -> None:
    batch = PutBatch(len(delays))
    for number, delay_ms in enumerate(delays):
        due_ms = clock.now_ms() + delay_ms
        properties = {"UNIQ_KEY": f"W{number}", "TIMER_DELIVER_MS": str(due_ms)}
        batch.add(
            topic_index=store.topics.find("TU"[number % 2]),
            queue_id=0,
            body=b"x",
            properties=encode_properties(properties),
            born_ms=1,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
    hook(batch, clock.now_ms())
    store.put(batch)
