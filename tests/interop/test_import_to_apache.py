"""`duemq timers import` into Apache's brokers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from duemq.cli.message_file import MessageFileWriter, PendingLine
from duemq.client.message import ReceivedMessage
from duemq.client.pull_consumer import PullConsumer
from duemq_common.clock import SystemClock
from tests.interop.apache import NEWEST, Apache
from tests.interop.peers import KEYS
from tests.support.commands import duemq
from tests.support.extended import extended
from tests.support.server import Server
from tests.support.wait_until import until

TOPIC = "Imported"
SLOT_MS = 1_000  # Apache's wheel delivers at the beginning of the second
HOUR_MS = 3_600_000
WAIT_S = 60.0


def write_lines(path: Path) -> dict[str, int]:
    """Write a file of due messages, and of others due soon and later; return due times."""
    now_ms = SystemClock().now_ms()
    delays_ms = (-HOUR_MS, -1, 4_000, 5_500, HOUR_MS, 2 * HOUR_MS)
    due_ms = {f"unique-{number}": now_ms + delay for number, delay in enumerate(delays_ms)}
    with MessageFileWriter(path, {}) as writer:
        writer.write(
            [
                PendingLine(TOPIC, number % 4, own_id, due, {"KEYS": "k", "TAGS": "t"}, b"body")
                for number, (own_id, due) in enumerate(due_ms.items())
            ]
        )
    return due_ms


def imported(file: Path, server: Server) -> Counter[str]:
    """Import a file; return the counts of sent and existing messages."""
    words = ("timers", "import", str(file), "--namesrv", server.namesrv_address, "--yes", "--json")
    done = duemq(*words)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    return Counter(send=counts["send"], exists=counts["exists"])


def delivered(server: Server) -> list[ReceivedMessage]:
    async def read() -> list[ReceivedMessage]:
        async with PullConsumer(server.namesrv_address, group="import_reader") as consumer:
            messages: list[ReceivedMessage] = []
            for queue in await consumer.queues(TOPIC):
                offset = 0
                while (batch := await consumer.pull(queue, offset)).messages:
                    messages += batch.messages
                    offset = batch.next_offset
            return messages

    return asyncio.run(read())


@pytest.mark.extended
@pytest.mark.parametrize("version", [NEWEST, extended("5.3.3")])
def test_messages_are_imported_once(version: str, tmp_path: Path) -> None:
    with Apache(version, tmp_path / "apache", keys=KEYS) as apache:
        apache.create_topic(TOPIC)
        due_ms = write_lines(tmp_path / "pending.jsonl")
        assert imported(tmp_path / "pending.jsonl", apache) == Counter(send=6, exists=0)
        assert imported(tmp_path / "pending.jsonl", apache) == Counter(send=0, exists=6)
        until(
            lambda: len(delivered(apache)) >= 4,
            seconds=WAIT_S,
            what="four are delivered",
            poll_s=1.0,
        )
        assert imported(tmp_path / "pending.jsonl", apache) == Counter(send=0, exists=6)
        messages = delivered(apache)
        assert sorted(each.message_id for each in messages) == [*due_ms][:4]
        for each in messages:
            assert each.record.store_ms > due_ms[each.message_id] - SLOT_MS
            assert (each.keys, each.tag, each.body) == (["k"], "t", b"body")


@pytest.mark.extended
def test_a_broker_without_timers_is_refused(tmp_path: Path) -> None:
    with Apache("4.9.7", tmp_path / "apache", keys=KEYS) as apache:
        apache.create_topic(TOPIC)
        write_lines(tmp_path / "pending.jsonl")
        where = ("--namesrv", apache.namesrv_address, "--yes")  # 4.9 has no routes of one broker
        done = duemq("timers", "import", str(tmp_path / "pending.jsonl"), *where)
        assert done.returncode == 4
        assert "older than RocketMQ 5.0" in done.stderr
        assert delivered(apache) == []
