"""A replica removes the queues of a topic that its master deletes."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.quarantine import NO_HOST
from duemq_common.clock import FakeClock
from duemq_common.topics import TABLES_TOPIC
from tests.support.encoded_records import encode_record
from tests.support.running_broker import running, small
from tests.support.stores import LOOPBACK, records_of

REPLICA = {"brokerRole": "SLAVE", "brokerId": "1"}
DELETED = b'{"kind":"topic","version":{"counter":1},"base":-1,"rows":{"T":null}}'


class MasterLog:
    """Log of a master, as bytes."""

    def __init__(self) -> None:
        self.data = b""
        self.numbers: dict[tuple[str, int], int] = {}

    def add(self, topic: str, queue_id: int, body: bytes, host: Any = LOOPBACK) -> None:
        now_ms = FakeClock().now_ms()
        number = self.numbers.get((topic, queue_id), 0)
        self.numbers[topic, queue_id] = number + 1
        self.data += encode_record(
            topic=topic,
            queue_id=queue_id,
            queue_offset=number,
            body=body,
            property_text=b"",
            phys_offset=len(self.data),
            store_ms=now_ms,
            born_ms=now_ms,
            born_host=host,
            store_host=LOOPBACK,
        )

    def delete(self, topic: str) -> None:
        self.add(TABLES_TOPIC, 0, DELETED, NO_HOST)
        self.numbers = {name: end for name, end in self.numbers.items() if name[0] != topic}

    def send_to(self, store: Any) -> None:
        end = store.max_offset
        assert store.append_raw(end, np.frombuffer(self.data[end:], np.uint8)) == (
            len(self.data) - end
        )


def bodies(store: Any, topic: str = "T") -> list[list[bytes]]:
    return [[each.body for each in records_of(store, topic, queue_id)] for queue_id in range(3)]


@pytest.mark.parametrize("in_one_transfer", [False, True])
def test_queues_of_the_deleted_topic_are_removed(tmp_path: Path, in_one_transfer: bool) -> None:
    async def main() -> None:
        log = MasterLog()
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            store, offsets = broker.store, broker.parts.offsets
            offsets.commit("G", "T", 1, 1)
            for queue_id in (0, 1, 1):
                log.add("T", queue_id, b"old")
            log.add("U", 0, b"other")
            if not in_one_transfer:
                log.send_to(store)
            log.delete("T")
            log.add("T", 2, b"new")
            log.add("T", 0, b"new")
            log.send_to(store)
            assert bodies(store) == [[b"new"], [], [b"new"]]
            assert bodies(store, "U") == [[b"other"], [], []]
            assert offsets.topics_of("G") == []
            log.add("T", 1, b"new")
            log.send_to(store)
            assert bodies(store) == [[b"new"]] * 3
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            assert bodies(broker.store) == [[b"new"]] * 3

    asyncio.run(main())


def test_a_full_disk_delays_the_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        log = MasterLog()
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            log.add("T", 0, b"old")
            log.delete("T")
            with monkeypatch.context() as patch:
                patch.setattr("message_store.queues.deleted_topics.write_config", full)
                log.send_to(broker.store)
            log.add("U", 0, b"other")
            log.send_to(broker.store)
            assert bodies(broker.store) == [[], [], []]

    asyncio.run(main())


def test_a_start_removes_queues_that_remained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full until the end of the process; a kill before the removal is the same."""

    def full(*values: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        log = MasterLog()
        for topic in ("T", "U"):
            log.add(topic, 1, b"old")
        log.delete("T")
        log.add("T", 2, b"new")
        with monkeypatch.context() as patch:
            patch.setattr("message_store.recovery.progress.QueueProgress.restart_topic", full)
            async with running(small(tmp_path, **REPLICA)) as (broker, _):
                log.send_to(broker.store)
                assert bodies(broker.store) == [[], [b"old"], [b"new"]]
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            assert bodies(broker.store) == [[], [], [b"new"]]
            assert bodies(broker.store, "U") == [[], [b"old"], []]
            broker.parts.offsets.commit("G", "T", 2, 1)
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            assert broker.parts.offsets.topics_of("G") == ["T"]

    asyncio.run(main())


def test_a_malformed_record_of_the_journal_is_skipped(tmp_path: Path) -> None:
    async def main() -> None:
        log = MasterLog()
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            log.add("T", 0, b"old")
            log.add(TABLES_TOPIC, 0, DELETED)  # of a client
            log.add(TABLES_TOPIC, 0, b"{", NO_HOST)
            log.send_to(broker.store)
            assert bodies(broker.store) == [[b"old"], [], []]

    asyncio.run(main())
