"""Stores that Apache 5.5.0 wrote: what is pending is delivered once, in time, and nothing else."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from duemq.broker.broker import Broker
from duemq_common.clock import FakeClock
from message_store.log.record import Record
from tests.support.golden_stores import (
    INDEX_ITEMS,
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    NEWEST,
    NEWEST_STORES,
    QUEUE_FILE_BYTES,
    GoldenStore,
    copy_golden_store,
    manifest_lines,
)
from tests.support.pop_client import advance, rest
from tests.support.running_broker import running, small

TOPIC, QUEUES = "Handed", 4
HOUR_MS = 3_600_000
LAST_MS, STEP_MS = 62 * HOUR_MS, HOUR_MS // 4
LEVELS_MS = parse_levels(DEFAULT_LEVELS)
SIZES = {
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": str(INDEX_ITEMS),
    "mappedFileSizeTimerLog": "2600",
}


def delivered(broker: Broker) -> list[Record]:
    store, found = broker.store, []
    for queue_id in range(QUEUES):
        at, end = store.queue_bounds(TOPIC, queue_id)
        while at < end:
            units = store.units(TOPIC, queue_id, at, end - at)
            found += [store.read_record(int(unit["phys_offset"])) for unit in units]
            at += units.size
    return found


def wanted(store: GoldenStore) -> dict[str, int]:
    """Return the bodies that are to come, and when at the earliest, ms after their birth or 0."""
    recalled = {line["body"] for line in manifest_lines(NEWEST, "recalled")}
    found = {}
    for line in manifest_lines(NEWEST, "sent"):
        is_there = line["body"].startswith("first") or not store.clean
        if is_there and line["body"] not in recalled:
            found[line["body"]] = line.get("due_ms", 0)
    return found


def end_of(store: GoldenStore) -> int:
    kind = "clean" if store.clean else "killed"
    (at,) = (int(end["at"]) for end in manifest_lines(NEWEST, "end") if end["store"] == kind)
    return at


@pytest.mark.parametrize("store", NEWEST_STORES, ids=str)
def test_everything_pending_is_delivered_once_and_in_time(
    store: GoldenStore, tmp_path: Path
) -> None:
    root = copy_golden_store(store.name, tmp_path)
    properties = small(tmp_path, **SIZES) | {"storePathRootDir": str(root)}
    properties |= {"timerWheelEnable": "true", "timerMaxDelaySec": "259200"}
    levels = {line["body"]: line["level"] for line in manifest_lines(NEWEST, "sent")}
    clock = FakeClock(end_of(store))

    async def main() -> tuple[list[Record], list[Record]]:
        async with running(properties, clock=clock) as (broker, _):
            await rest(broker)
            before = delivered(broker)
            await advance(broker, clock, LAST_MS, by_ms=STEP_MS)
            return before, delivered(broker)

    before, after = asyncio.run(main())
    log_end = max(record.phys_offset for record in before)
    due_ms = wanted(store)
    counts = Counter(record.body.decode() for record in after)
    repeated = {body for body, count in counts.items() if count > 1}
    assert counts.keys() == due_ms.keys()
    # A killed broker may forget what it delivered of a level since it wrote its progress.
    forgotten = {body for body in due_ms if body.startswith("second-soon")}
    assert repeated <= (set() if store.clean else forgotten)
    assert len(after) > len(before) > 70
    for record in after:
        body = record.body.decode()
        level = levels[body]
        earliest_ms = due_ms[body] or (record.born_ms + LEVELS_MS[level] if level else 0)
        assert earliest_ms <= record.store_ms
        if record.phys_offset > log_end and due_ms[body]:
            assert record.store_ms < earliest_ms + STEP_MS
