"""Message store with timers on a fake clock, which can be killed and reopened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from tests.support.inline_loop import run_inline
from tests.support.stores import add_message, crash, open_store, records_of
from timer_store import layout
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.store import TimerStore

LOG_FILE_BYTES = 2_600  # 49 units
TURNS_MAX = 100_000


def pending_unit_records(timers: TimerStore) -> npt.NDArray[np.int64]:
    """Return the records of the units that a broker finds from the read time on.

    Units that cancel a timer are excluded.

    Source: TimerMessageStore.dequeue
    """
    blocks = [np.empty(0, np.int64)]
    for rows in timers.units.log.scan():
        cancels = (rows["magic"] & layout.MAGIC_DELETE) != 0
        blocks.append(rows["phys_offset"][(rows["slot_ms"] >= timers.position.read_ms) & ~cancels])
    return np.concatenate(blocks)


def assert_each_once_for_apache(timers: TimerStore) -> None:
    """Check that an Apache broker would find each pending timer exactly once."""
    units = pending_unit_records(timers)
    assert np.unique(units).size == units.size, "an Apache broker would deliver some twice"
    assert units.size == timers.counts.total, "an Apache broker would deliver what has left"


class TimerRig:
    """Message store with timers, which can be closed or killed, and reopened."""

    def __init__(self, root: Path, clock: FakeClock | None = None, **config: Any) -> None:
        self.root, self.clock = root, clock or FakeClock()
        self.config = TimerConfig(**({"log_file_bytes": LOG_FILE_BYTES} | config))
        self.store_changes: dict[str, Any] = {}
        self.topics = ["T", "U"]
        self.notices: list[str] = []
        self.is_open = False
        self.is_sound = True  # no unit was damaged

    def open(self) -> TimerRig:
        """Recover the store and deliver due timers."""
        self.store = open_store(
            self.root, self.clock, flush_commitlog_interval_ms=100_000_000, **self.store_changes
        )
        self.store.__enter__()
        topics = self.store.topics
        topics.set_routing(TIMER_TOPIC, write_queues=1, read_queues=1, perm=6)
        for name in self.topics:
            topics.set_routing(name, write_queues=4, read_queues=4, perm=6)
        self.timers = TimerStore(self.store, self.clock, self.config)
        self.timers.open(notice=self.notices.append)
        self.keeper = CheckpointWriter(self.timers)
        assert self.persist(last=True)
        self.hook = TimerHook(topics, self.config, self.timers.units.wheel.num)
        self.store.add_dispatcher(self._dispatch)
        self.is_open = True
        self.work()
        return self

    def _dispatch(self, batch: PutBatch) -> None:
        self.timers.on_put(batch)

    def close(self) -> None:
        """Close cleanly, like a broker."""
        assert run_inline(self.keeper.persist_last())
        if self.is_sound:
            assert_each_once_for_apache(self.timers)
        self.timers.close()
        self.store.__exit__(None, None, None)
        self.is_open = False

    def kill(self) -> None:
        """End like a killed process."""
        self.timers.close()
        crash(self.store)
        self.is_open = False

    def persist(self, *, last: bool = False) -> bool:
        """Write a checkpoint."""
        return run_inline(self.keeper.persist(last=last))

    # -- work -----------------------------------------------------------------------------------

    def put(
        self, due_ms: int, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **extra: str
    ) -> PutBatch:
        """Run the put hooks on a message with TIMER_DELIVER_MS, and append it."""
        return self.put_many([(due_ms, topic, queue_id, body)], **extra)

    def put_many(self, messages: list[tuple[int, str, int, bytes]], **extra: str) -> PutBatch:
        """Send several messages in one batch."""
        batch = PutBatch(len(messages))
        for due_ms, topic, queue_id, body in messages:
            properties = {"TIMER_DELIVER_MS": str(due_ms), **extra}
            add_message(self.store, batch, topic, queue_id, body, properties=properties)
        self.hook(batch, self.clock.now_ms())
        self.store.put(batch)
        return batch

    def work(self) -> None:
        """Run turns until there is no more work at this time."""
        for _ in range(TURNS_MAX):
            if not self.timers.turn(self.clock.now_ms()):
                return
        raise AssertionError("the timer store does not become idle")

    def advance(self, step_ms: int) -> None:
        """Advance the clock from wakeup to wakeup of the service."""
        end_ms = self.clock.now_ms() + step_ms
        self.work()
        while True:
            next_ms = self.timers.next_work_ms(self.clock.now_ms())
            if next_ms > end_ms:
                break
            self.clock.set_ms(max(next_ms, self.clock.now_ms()))
            self.work()
            if next_ms <= self.clock.now_ms() == end_ms:
                break
        self.clock.set_ms(end_ms)
        self.work()

    # -- state ----------------------------------------------------------------------------------

    def delivered(self, topic: str = "T", queue_id: int = 0) -> list[Any]:
        """Return the records of a queue."""
        return records_of(self.store, topic, queue_id)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Return the bodies of a queue."""
        return [record.body for record in self.delivered(topic, queue_id)]
