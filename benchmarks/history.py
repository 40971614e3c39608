"""Time of a history request to a broker with millions of messages in its store.

    python -m benchmarks.history --messages 20000000 --root /var/tmp/history

The store is filled through the library, once: a later run with the same root measures only. The
broker runs in this process with the production configuration; no name is requested twice.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.fill import HEX, KEY_HEAD, LOOPBACK, write_digits
from duemq.broker.broker import Broker
from duemq.client.admin import Admin
from duemq_common.clock import SystemClock
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore

ROWS = 20_000
TOPICS = 200
QUEUES = 4
DIGITS = 8
KEY = "order-"
BODY = b"x" * 16
SEED = 32


def unique_id(number: int) -> str:
    """Return the unique id of a message by its number."""
    return f"{KEY_HEAD}{number:0{DIGITS}X}"


def order_key(number: int) -> str:
    """Return the key of a message by its number."""
    return f"{KEY}{number:0{DIGITS}X}"


def fill(root: Path, count: int) -> None:
    """Put messages with two keys each into the store of a stopped broker, and index them."""
    clock = SystemClock()
    with MessageStore(StoreConfig(root_text=str(root / "store")), clock) as store:
        names = [f"topic-{n}" for n in range(TOPICS)]
        for name in names:
            store.topics.set_routing(name, write_queues=QUEUES, read_queues=QUEUES, perm=6)
        text = encode_properties({"UNIQ_KEY": unique_id(0), "KEYS": order_key(0), "WAIT": "true"})
        batch = PutBatch(ROWS)
        for n in range(ROWS):
            batch.add(
                topic_index=store.topics.find(names[n % TOPICS]),
                queue_id=n // TOPICS % QUEUES,
                body=BODY,
                properties=text,
                born_ms=clock.now_ms(),
                born_host=LOOPBACK,
                store_host=LOOPBACK,
            )
        rows, width = batch.rows.copy(), len(BODY) + len(text)
        texts = batch.staging[: ROWS * width].reshape(ROWS, width)
        places = [len(BODY) + text.index(name) for name in (KEY_HEAD.encode(), KEY.encode())]
        starts = [places[0] + len(KEY_HEAD), places[1] + len(KEY)]
        for first in range(0, count, ROWS):
            size = min(ROWS, count - first)
            batch.rows[:size], batch.count = rows[:size], size
            for start in starts:
                texts[:size, start : start + DIGITS] = HEX[0]
                write_digits(texts[:size, start:], np.arange(first, first + size), DIGITS, 16)
            store.put(batch)
            assert not (batch.filled["status"] != 0).any(), batch.remarks
        while store.index.lag_bytes:
            store.index.catch_up()


async def measure(root: Path, count: int, requests: int) -> None:
    """Print the times of requests by each kind of name."""
    numbers = random.Random(SEED).sample(range(count), 4 * requests + 1)
    properties = {
        "storePathRootDir": str(root / "store"),
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "metricsExporterType": "DISABLE",
    }
    async with Broker(properties) as broker, Admin(broker=broker.address, timeout_s=600) as admin:
        start = time.perf_counter()
        await admin.message_history(unique_id(numbers[-1]))
        print(f"first request: {(time.perf_counter() - start) * 1_000:.1f} ms")
        offset_ids: dict[int, str] = {}

        async def times_ms(kind: str, name: Callable[[int], str], topic: bool, part: int) -> None:
            times = []
            for number in numbers[part * requests : (part + 1) * requests]:
                in_topic = f"topic-{number % TOPICS}" if topic else ""
                start = time.perf_counter()
                answer = await admin.message_history(name(number), topic=in_topic)
                times.append((time.perf_counter() - start) * 1_000)
                [message] = answer.messages
                assert message.unique_key == unique_id(number)
                offset_ids[number] = message.offset_message_id
            middle, high = np.percentile(times, [50, 99])
            print(f"{kind}: median {middle:.1f} ms, p99 {high:.1f} ms")

        await times_ms("unique id, any topic", unique_id, False, 0)
        await times_ms("unique id, its topic", unique_id, True, 1)
        await times_ms("key, any topic", order_key, False, 2)
        await times_ms("key, its topic", order_key, True, 3)
        await times_ms("offset id", offset_ids.__getitem__, False, 3)


def main() -> None:
    """Fill the store if it does not exist, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--root", type=Path, required=True)
    arguments = parser.parse_args()
    if not (arguments.root / "store").exists():
        start = time.perf_counter()
        fill(arguments.root, arguments.messages)
        print(f"filled in {time.perf_counter() - start:.0f} s")
    asyncio.run(measure(arguments.root, arguments.messages, arguments.requests))


if __name__ == "__main__":
    main()
