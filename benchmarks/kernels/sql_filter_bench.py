"""Evaluation of SQL92 filters over the records of a queue, by the kernel and by closures.

python -m benchmarks.kernels.sql_filter_bench [messages]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from time import thread_time

import numpy as np

from benchmarks.kernels.timer_put_bench import LOOPBACK
from duemq.filters import Expression
from duemq.pull.record_filter import RecordFilter, units_evaluated
from duemq_common.clock import FakeClock
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore

TOPIC = "bench"
FILL_ROWS = 10_000
COUNT_MAX = 32  # messages of one pull
EXPRESSIONS = (
    "share = 7",
    "share = 7 AND region = 'eu'",
    "price BETWEEN 10.5 AND 11.5 AND region IN ('eu', 'us', 'cn')",
    "name CONTAINS 'er-77' OR name IS NULL",
    "(share = 7) IS NOT NULL AND share = 7",  # not supported by the kernel
)


def fill(store: MessageStore, count: int) -> None:
    """Put messages of 100 bytes with the usual properties and four more."""
    topic = store.topics.add(TOPIC)
    batch = PutBatch(FILL_ROWS)
    for first in range(0, count, FILL_ROWS):
        batch.clear()
        for number in range(first, min(first + FILL_ROWS, count)):
            properties = {
                "UNIQ_KEY": f"7F00000100002A139A55{number:012X}",
                "WAIT": "true",
                "TAGS": "paid",
                "share": str(number % 100),
                "region": ("eu", "us", "cn")[number % 3],
                "price": f"{number % 97}.{number % 10}",
                "name": f"customer-{number % 1_000}",
            }
            batch.add(
                topic_index=topic,
                queue_id=0,
                body=b"x" * 100,
                properties=encode_properties(properties),
                born_ms=0,
                born_host=LOOPBACK,
                store_host=LOOPBACK,
            )
        store.put(batch)


def pull_all(store: MessageStore, expression: Expression, *, compiled: bool) -> int:
    """Evaluate a filter over the whole queue as pulls do; return the number of matches."""
    offset, end, matches = 0, store.queue_bounds(TOPIC, 0)[1], 0
    count = units_evaluated(expression, compiled=compiled)
    while offset < end:
        units = store.units(TOPIC, 0, offset, min(count, end - offset))
        position = (TOPIC, 0, offset)
        passing = RecordFilter(store, position, expression, compiled=compiled).passing(
            units, COUNT_MAX
        )
        indexes = np.flatnonzero(passing)
        matches += min(indexes.size, COUNT_MAX)
        offset += int(indexes[COUNT_MAX]) if indexes.size > COUNT_MAX else passing.size
    return matches


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = StoreConfig(root_text=str(Path(directory)))
        with MessageStore(config, FakeClock()) as store:
            fill(store, count)
            for text in EXPRESSIONS:
                for compiled in (True, False):
                    expression = Expression(text)
                    pull_all(store, expression, compiled=compiled)
                    begin = thread_time()
                    matches = pull_all(store, expression, compiled=compiled)
                    took = thread_time() - begin
                    way = "kernel" if compiled and expression.program else "closure"
                    print(
                        f"{text[:58]:58s} {way:8s} {matches:8d} matches "
                        f"{took / count * 1e9:7.0f} ns a message {count / took / 1e6:6.2f} M/s"
                    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
