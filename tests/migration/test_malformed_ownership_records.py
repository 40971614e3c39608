"""Malformed ownership records, which never prevent a start and are read once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from delayed_delivery import ownership
from duemq_common.topics import OWNERSHIP_TOPIC
from tests.delayed_delivery.test_ownership import HANDOVER, MALFORMED, put_record
from tests.support.running_broker import running, small
from tests.support.stores import LOOPBACK


@pytest.mark.finding("A2")
def test_a_broker_starts_with_any_ownership_records(tmp_path: Path) -> None:
    properties = small(tmp_path, messageDelayLevel="1s 60s", timerWheelEnable="true")

    async def append_malformed() -> None:
        async with running(properties) as (broker, client):
            assert (await client.send("T", b"x", DELAY="2")).code == 0
            for record, changes in MALFORMED.values():
                body = json.dumps(json.loads(ownership.encode(record)) | changes).encode()
                put_record(broker.store, body)
            put_record(broker.store, b"[" * 10_000)
            put_record(broker.store, ownership.encode(HANDOVER), LOOPBACK)

    async def start() -> None:
        async with running(properties) as (broker, client):
            assert (await client.send("T", b"y")).code == 0
            assert broker.store.queue_bounds(OWNERSHIP_TOPIC, 0)[1] == len(MALFORMED) + 2

    asyncio.run(append_malformed())
    asyncio.run(start())


@pytest.mark.finding("E10")
def test_malformed_records_are_read_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    properties = small(tmp_path, messageDelayLevel="1s 60s", timerWheelEnable="true")

    async def steps() -> None:
        async with running(properties) as (broker, _):
            migrations = broker.plugins.plugins["migration"].parts.service.migrations  # type: ignore[attr-defined]
            for _ in range(50):
                put_record(broker.store, b"junk")
            migrations.catch_up()
            reported = [text for text in caplog.messages if OWNERSHIP_TOPIC in text]
            assert len(reported) == 1
            assert "50 records" in reported[0]
            read: list[int] = []
            store_read = broker.store.read_record
            broker.store.read_record = lambda at: read.append(at) or store_read(at)  # type: ignore[assignment, func-returns-value]
            for _ in range(5):
                migrations.catch_up()
                migrations.append_missing_state()
            assert read == []
            assert len([text for text in caplog.messages if OWNERSHIP_TOPIC in text]) == 1
            put_record(broker.store, b"more")
            migrations.catch_up()
            assert len(read) == 1

    asyncio.run(steps())
