"""Rows of due timers in a small store, as the near stage returns them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from duemq_common.clock import FakeClock
from duemq_common.text import java_hash
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.support.stores import add_message, open_store, records_of
from timer_store import layout

PRECISION_MS = 1_000
WRITE_MS = 1_699_999_999_000


def timer_topics(store: MessageStore, *names: str) -> None:
    """Create the timer topic and real topics."""
    store.topics.set_routing(TIMER_TOPIC, write_queues=1, read_queues=1, perm=6)
    for name in names:
        store.topics.set_routing(name, write_queues=4, read_queues=4, perm=6)


def open_timer_store(root: Path, *topics: str, **changes: Any) -> MessageStore:
    """Return a store for `timer_topics`; the caller enters it as a context manager."""
    return open_store(root, FakeClock(), **changes)


def append_timers(
    store: MessageStore,
    *bodies: bytes,
    topic: str = "T",
    queue_id: int = 0,
    delay_ms: int = 0,
    due_ms: int | None = None,
    **properties: str,
) -> Any:
    """Append timers as changed by the put hook; return their (n,) `layout.STAGED` rows."""
    due = store.clock.now_ms() + delay_ms if due_ms is None else due_ms
    text = {
        "TIMER_DELIVER_MS": str(due),
        "TIMER_OUT_MS": str((due - 1) // 1_000 * 1_000),
        "REAL_TOPIC": topic,
        "REAL_QID": str(queue_id),
    } | properties
    batch = PutBatch(len(bodies))
    for body in bodies:
        left = {name: value for name, value in text.items() if value}
        add_message(store, batch, TIMER_TOPIC, 0, body, properties=left)
    store.put(batch)
    assert not batch.filled["status"].any()
    return staged(batch.filled, due, topic)


def staged(put: Any, due_ms: int, topic: str = "T") -> Any:
    """Return the STAGED rows of appended PUT rows."""
    rows = np.zeros(put.size, layout.STAGED)
    rows["phys_offset"], rows["record_size"] = put["phys_offset"], put["record_size"]
    rows["due_ms"], rows["write_ms"], rows["pos"] = due_ms, WRITE_MS, np.arange(put.size) * 52
    rows["topic_hash"], rows["magic"] = java_hash(topic), layout.MAGIC_DEFAULT
    return rows


def records(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[Any]:
    """Return the decoded records of a queue."""
    return records_of(store, topic, queue_id)


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Return the bodies of a queue."""
    return [record.body for record in records(store, topic, queue_id)]
