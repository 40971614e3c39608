"""Filler that puts pending level messages into a store: a million in a few seconds.

The filler sets the clock for each batch, so that the delivery times are spread over most of the
level's delay, as with traffic of an hour and more.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fill import BODY_BYTES, KEY_DIGITS, KEY_HEAD, LOOPBACK, ROWS, key, write_digits
from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from duemq_common.clock import FakeClock
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.put_hook import LevelHook
from tests.support.wait_until import now_ms

LEVEL = 18
QUEUES = 4
DELAY_MS = 7_200_000  # of level 18; messages of longer levels are born as late
FIRST_DUE_MS = 30 * 60_000  # from now: no delivery during the measurement
LAST_BORN_MS = 10_000  # before now
APACHE_ENTRIES = ("commitlog", "consumequeue", "index", "config", "checkpoint")
PERM = 6


def fill_levels(
    root: Path,
    count: int,
    topic: str,
    *,
    level: int = LEVEL,
    text: str = DEFAULT_LEVELS,
    file_bytes: int = StoreConfig().commitlog_file_bytes,
) -> None:
    """Put `count` messages of a level into the store of a stopped broker.

    Args:
        text: Delays of the levels.
        file_bytes: Size of a commit log file of the store.
    """
    clock, end_ms = FakeClock(0), now_ms() - LAST_BORN_MS
    delay_ms = min(int(parse_levels(text)[level]), DELAY_MS)
    first_ms = end_ms - delay_ms + FIRST_DUE_MS
    clock.set_ms(first_ms)
    config = StoreConfig(root_text=str(root), commitlog_file_bytes=file_bytes)
    with MessageStore(config, clock) as store:
        hook = LevelHook(store.topics, LevelHistory([LevelText(0, text)]))
        _create_topics(store, topic)
        batch = PutBatch(ROWS)
        properties = encode_properties({"UNIQ_KEY": key(0), "WAIT": "true", "DELAY": str(level)})
        for n in range(ROWS):
            batch.add(
                topic_index=store.topics.find(topic),
                queue_id=n % QUEUES,
                body=b"x" * BODY_BYTES,
                properties=properties,
                born_ms=0,
                born_host=LOOPBACK,
                store_host=LOOPBACK,
            )
        rows, width = batch.rows.copy(), BODY_BYTES + len(properties)
        texts = batch.staging[: ROWS * width].reshape(ROWS, width)
        key_at = BODY_BYTES + properties.index(key(0).encode()) + len(KEY_HEAD)
        for first in range(0, count, ROWS):
            size = min(ROWS, count - first)
            batch.rows[:size], batch.count = rows[:size], size
            write_digits(texts[:size, key_at:], np.arange(first, first + size), KEY_DIGITS, 16)
            clock.set_ms(first_ms + (end_ms - first_ms) * first // count)
            batch.rows["born_ms"][:size] = clock.now_ms()
            hook(batch, clock.now_ms())
            store.put(batch)
            assert not (batch.filled["status"] != 0).any(), batch.remarks
        while store.index.lag_bytes:
            store.index.catch_up()


def fill_apache_store(root: Path, count: int, topic: str) -> None:
    """Make a store with the files that Apache RocketMQ 4.9.7 leaves after a clean stop."""
    fill_levels(root, count, topic)
    for path in root.iterdir():
        if path.name not in APACHE_ENTRIES:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    config = root / "config"
    for path in config.iterdir():
        path.unlink()
    topics = {name: _topic(name, queues) for name, queues in _queues(topic).items()}
    version = {"counter": len(topics), "timestamp": now_ms()}
    _write(config / "topics.json", {"dataVersion": version, "topicConfigTable": topics})
    _write(config / "delayOffset.json", {"offsetTable": {}})
    _write(config / "consumerOffset.json", {"offsetTable": {}})


def _queues(topic: str) -> dict[str, int]:
    return {SCHEDULE_TOPIC: len(parse_levels(DEFAULT_LEVELS)) - 1, topic: QUEUES}


def _create_topics(store: Any, topic: str) -> None:
    for name, queues in _queues(topic).items():
        store.topics.set_routing(name, write_queues=queues, read_queues=queues, perm=PERM)


def _topic(name: str, queues: int) -> dict[str, Any]:
    return {
        "order": False,
        "perm": PERM,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent="\t") + "\n")
