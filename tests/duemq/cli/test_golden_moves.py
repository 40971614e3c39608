"""Pending messages of Apache's stores, exported and imported: delivered once, at their times."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.cli.message_file import MessageFileWriter, PendingLine, read_file
from duemq.cli.sending_once import EXISTS, SEND, OnceSender
from duemq.client.client import Client
from duemq_common.clock import FakeClock
from message_store.log.record import Record
from tests.duemq.cli.test_stopped_store import COUNTS, pending_of
from tests.duemq.test_newest_golden_stores import LEVELS_MS
from tests.support.extended import extended
from tests.support.golden_stores import (
    NEWEST,
    ROCKSDB_VERSION,
    STORES,
    golden_store,
    manifest_lines,
)
from tests.support.pop_client import advance, rest
from tests.support.running_broker import running, small
from tests.support.stores import records_of

HOUR_MS = 3_600_000
LAST_MS, STEP_MS = 62 * HOUR_MS, HOUR_MS // 4
QUEUES = 4
SEND_MS = 1_000  # maximum duration of a send
SHORT = ("apache-5.5.1-wheel", "apache-4.9.7-clean")
NAMES = [
    name if name in SHORT else extended(name)
    for name in (*COUNTS, *(store.name for store in STORES))
]


def version_of(name: str) -> str:
    return name.split("-")[1]


def bodies_sent(name: str) -> dict[str, dict[str, Any]]:
    """Return the lines of a manifest about sent messages by body; older ones have no bodies."""
    version = version_of(name)
    kind = name.removeprefix(f"apache-{version}-")
    return {
        line["body"]: line
        for line in manifest_lines(version, "sent")
        if "body" in line and (version == NEWEST or line["store"] == kind)
    }


def delivered(broker: Broker, topics: set[str]) -> list[Record]:
    return [
        record
        for topic in topics
        for queue in range(QUEUES)
        for record in records_of(broker.store, topic, queue)
    ]


async def move(file: Path, lines: list[PendingLine], home: Path) -> list[Record]:
    """Import a file twice; return what the broker has delivered after 62 hours."""
    clock = FakeClock(max(line.store_ms for line in lines) + 1)
    keys = {"timerMaxDelaySec": "259200", "defaultTopicQueueNums": str(QUEUES)}
    async with running(small(home, **keys), clock=clock) as (broker, _):
        async with Client(broker=broker.address, timeout_s=60) as client:
            sender, messages = OnceSender(client), list(read_file(file))
            assert await sender.actions(messages) == [SEND] * len(lines)
            assert await sender.send_all(messages) == [SEND] * len(lines)
            assert await sender.actions(messages) == [EXISTS] * len(lines)
        await rest(broker)
        await advance(broker, clock, LAST_MS, by_ms=STEP_MS)
        return delivered(broker, {line.topic for line in lines})


@pytest.mark.parametrize("name", NAMES)
def test_messages_are_delivered_once_at_their_times(name: str, tmp_path: Path) -> None:
    lines = pending_of(golden_store(name), tmp_path)
    file = tmp_path / "pending.jsonl"
    with MessageFileWriter(file, {}) as writer:
        writer.write(lines)
    arrived = asyncio.run(move(file, lines, tmp_path))
    due_ms = {line.unique_id: line.due_ms for line in lines}
    counts = Counter(record.properties["UNIQ_KEY"] for record in arrived)
    assert counts == Counter(due_ms.keys())
    for record in arrived:
        due = due_ms[record.properties["UNIQ_KEY"]]
        assert due <= record.store_ms < due + STEP_MS
    if version_of(name) in (NEWEST, ROCKSDB_VERSION):
        sent = bodies_sent(name)
        for line in lines:
            facts = sent[line.body.decode()]
            level_ms = LEVELS_MS[facts["level"]] if facts["level"] else 0
            earliest_ms = facts.get("due_ms", line.store_ms + level_ms)  # before the send
            assert earliest_ms <= line.due_ms <= earliest_ms + SEND_MS
