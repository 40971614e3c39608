"""Filler that puts timers into a store through the library: a million in a few seconds.

The filler encodes a batch once. For each further batch it overwrites only the digits of keys and
times, for all rows at once, so that nearly all of the time is spent in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duemq_common.clock import Clock, SystemClock
from duemq_common.topics import TIMER_TOPIC
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.store import TimerStore

Times = npt.NDArray[np.int64]
LOOPBACK = (b"\x7f\0\0\1", 10_911)
ROWS = 4_096
KEY_HEAD, KEY_DIGITS, TIME_DIGITS = "7F0000010BB818B4AAC274A1", 8, 13  # as ids of Apache's clients
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
BODY_BYTES = 100
HOUR_MS = 3_600_000
FAR_MS = (HOUR_MS, 47 * HOUR_MS)  # no delivery and no roll during the measurement


class Filler:
    """Writer of timers into an open store.

    Attributes:
        count: Number of timers put; timer n has the key `key(n)`.
    """

    def __init__(
        self, timers: TimerStore, topics: tuple[str, ...] = ("bench",), body_bytes: int = BODY_BYTES
    ) -> None:
        self.count = 0
        self._store: MessageStore = timers.store
        self._clock: Clock = timers.clock
        self._hook = TimerHook(self._store.topics, timers.config, timers.units.wheel.num)
        for name in (TIMER_TOPIC, *topics):
            queues = 1 if name == TIMER_TOPIC else 4
            self._store.topics.set_routing(name, write_queues=queues, read_queues=queues, perm=6)
        self._batch = PutBatch(ROWS)
        text = encode_properties(
            {"UNIQ_KEY": key(0), "WAIT": "true", "TIMER_DELIVER_MS": "0" * TIME_DIGITS}
        )
        for n in range(ROWS):
            self._batch.add(
                topic_index=self._store.topics.find(topics[n % len(topics)]),
                queue_id=n // len(topics) % 4,
                body=b"x" * body_bytes,
                properties=text,
                born_ms=self._clock.now_ms(),
                born_host=LOOPBACK,
                store_host=LOOPBACK,
            )
        width = body_bytes + len(text)
        self._template_rows = self._batch.rows.copy()
        self._texts = self._batch.staging[: ROWS * width].reshape(ROWS, width)
        self._key_at = body_bytes + text.index(key(0).encode()) + len(KEY_HEAD)
        self._due_at = body_bytes + text.rindex(b"0" * TIME_DIGITS)

    def put(self, due_ms: Times) -> PutBatch:
        """Append at most ROWS timers as one batch, and return the batch."""
        self.make(due_ms)
        self.append()
        return self._batch

    def make(self, due_ms: Times) -> None:
        """Fill the batch as sends of clients would."""
        size = int(due_ms.size)
        batch, numbers = self._batch, np.arange(self.count, self.count + size)
        batch.rows[:size] = self._template_rows[:size]
        batch.rows["timer_value"][:size] = due_ms
        batch.count = size
        write_digits(self._texts[:size, self._key_at :], numbers, KEY_DIGITS, 16)
        write_digits(self._texts[:size, self._due_at :], due_ms, TIME_DIGITS, 10)

    def append(self) -> None:
        """Run the put hook and append the batch, as the broker does."""
        self._hook(self._batch, self._clock.now_ms())
        self._store.put(self._batch)
        refused = self._batch.filled["status"] != 0
        assert not refused.any(), self._batch.remarks
        self.count += self._batch.count

    def fill(
        self,
        count: int,
        due_of: Callable[[Times], Times],
        on_batch: Callable[[Any], None] | None = None,
    ) -> None:
        """Put `count` timers.

        Args:
            due_of: Returns the delivery times of timers by number, in ms since the epoch.
            on_batch: Called with the log offsets of each batch.
        """
        end = self.count + count
        while self.count < end:
            numbers = np.arange(self.count, min(self.count + ROWS, end))
            batch = self.put(due_of(numbers))
            if on_batch is not None:
                on_batch(batch.filled["phys_offset"].copy())


def key(number: int) -> str:
    """Return the unique key of a timer by its number."""
    return f"{KEY_HEAD}{number:0{KEY_DIGITS}X}"


def far(now_ms: int, seed: int = 4) -> Callable[[Times], Times]:
    """Return a function of random delivery times, 1 to 47 hours from now."""
    random = np.random.default_rng(seed)
    return lambda numbers: now_ms + random.integers(*FAR_MS, numbers.size)


def catch_up_index(store: MessageStore) -> None:
    """Index all keys, as the broker does within an idle second."""
    while store.index.lag_bytes:
        store.index.catch_up()


def fill_store(root: Path, count: int, topic: str) -> None:
    """Put `count` timers into the store of a stopped broker, and close the store cleanly."""
    clock = SystemClock()
    with MessageStore(StoreConfig(root_text=str(root)), clock) as store:
        timers = TimerStore(store, clock, TimerConfig())
        timers.open()
        store.add_dispatcher(lambda batch: _note(timers, batch))
        filler = Filler(timers, (topic,))
        filler.fill(count, far(clock.now_ms()))
        while timers.turn(clock.now_ms()):
            pass
        assert timers.counts.total >= count
        catch_up_index(store)
        assert asyncio.run(CheckpointWriter(timers).persist(last=True))
        timers.close()


def _note(timers: TimerStore, batch: PutBatch) -> None:
    timers.on_put(batch)


def write_digits(out: npt.NDArray[np.uint8], numbers: Times, count: int, base: int) -> None:
    """Write numbers with `count` digits to the start of each row of `out`."""
    remaining = numbers.copy()
    for column in range(count - 1, -1, -1):
        if not remaining.any():
            out[:, column] = HEX[0]
            continue
        remaining, digit = np.divmod(remaining, base)
        out[:, column] = HEX[digit]
