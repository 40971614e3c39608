"""Delivery of level messages: the kernel `read_due` alone, and delivery into a store.

python -m benchmarks.kernels.level_deliver_bench [messages per batch]
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks.kernels.ingest_bench import measure
from delayed_delivery.level_delays import DEFAULT_LEVELS
from duemq_common.clock import FakeClock
from duemq_common.topics import HALF_TOPIC, SCHEDULE_TOPIC
from message_store import layout
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from schedule_service import kernels
from schedule_service.deliverer import Deliverer
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.queues import ScheduleQueues

LEVEL, NOW_MS, TOPICS = 3, 1_700_000_000_000, 4
DELAY_MS = 10_000  # of the level
LOOPBACK = (b"\x7f\0\0\1", 10_911)
BODY = b"x" * 100


def fill(store: MessageStore, count: int) -> Any:
    """Append level messages to several topics; return their consume queue units."""
    schedule, batch = store.topics.add(SCHEDULE_TOPIC), PutBatch(count)
    for n in range(TOPICS):
        store.topics.set_routing(f"bench{n}", write_queues=4, read_queues=4, perm=6)
    for n in range(count):
        properties = {
            "UNIQ_KEY": f"7F000001{n:024X}",
            "CLUSTER": "DefaultCluster",
            "WAIT": "true",
            "TAGS": "TagA",
            "DELAY": str(LEVEL),
            "REAL_TOPIC": f"bench{n // 32 % TOPICS}",
            "REAL_QID": str(n % 4),
        }
        batch.add(
            topic_index=schedule,
            queue_id=LEVEL - 1,
            body=BODY,
            born_ms=NOW_MS,
            properties=encode_properties(properties),
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
    store.put(batch)
    units = np.zeros(count, layout.UNIT)
    units["phys_offset"] = batch.filled["phys_offset"]
    units["size"], units["index"] = batch.filled["record_size"], batch.filled["queue_offset"]
    units["tags_code"] = NOW_MS + DELAY_MS
    return units


def measure_kernel(store: MessageStore, units: Any) -> None:
    """Measure the kernel on all units at once."""
    topics, file = store.topics, store.log.files[0]
    half = topics.add(HALF_TOPIC)
    source = kernels.Source(topics.find(SCHEDULE_TOPIC), half, LEVEL - 1, 1, 0, DELAY_MS)
    rows, scratch = np.zeros(units.size, layout.PUT), np.zeros(1, layout.SCANNED)
    span = (file.base, store.log.end - file.base)

    def read() -> None:
        count = kernels.read_due(file.data, span, units, topics.arrays, source, scratch, rows)
        assert count == units.size

    measure(f"read_due, {units.size} a call", int(units.size), read)


def main(count: int) -> None:
    """Measure batches of `count` messages."""
    with (
        tempfile.TemporaryDirectory() as directory,
        MessageStore(StoreConfig(root_text=directory), FakeClock(NOW_MS)) as store,
    ):
        units = fill(store, count)
        measure_kernel(store, units)
        history = LevelHistory([LevelText(0, DEFAULT_LEVELS)])
        deliverer = Deliverer(store, ScheduleQueues(store, history))

        def deliver() -> None:
            assert deliverer.deliver_batch(LEVEL, 0, units, NOW_MS, delay_ms=DELAY_MS).done == count

        measure(f"due to appended, {count} a call", count, deliver)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_048)
