"""Stores of Apache 5.5.1, killed, with RocksDB and without: what is pending is delivered once."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.configuration.rocksdb_tables import check_tables
from duemq_common.clock import FakeClock
from duemq_common.errors import ConfigError
from message_store.log.record import Record
from message_store.queues.apache_names import ROCKSDB_TABLES
from tests.duemq.test_newest_golden_stores import LEVELS_MS, SIZES, delivered
from tests.support.golden_stores import ROCKSDB_VERSION, copy_golden_store, manifest_lines
from tests.support.pop_client import PopClient, advance, rest
from tests.support.running_broker import BrokerClient, running, small

HOUR_MS = 3_600_000
LAST_MS, STEP_MS = 62 * HOUR_MS, HOUR_MS // 4
EXPORTED = "rocksdb-exported"
FILES = (
    "wheel",
    "timeline",
    "timeline-off",
    "rolled",
    "halves",
    "combined",
    "combined-separate",
    EXPORTED,
    "lmq",
)
HALF_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC")
COMMIT, ROLLBACK = 8, 12


def lines(store: str, kind: str) -> list[dict[str, Any]]:
    return [line for line in manifest_lines(ROCKSDB_VERSION, kind) if line["store"] == store]


def opened(store: str, tmp_path: Path) -> tuple[dict[str, str], FakeClock]:
    """Return the properties of a broker on a copy of a store, and its clock."""
    root = copy_golden_store(f"apache-{ROCKSDB_VERSION}-{store}", tmp_path)
    properties = small(tmp_path, **SIZES) | {"storePathRootDir": str(root)}
    properties |= {"timerWheelEnable": "true", "timerMaxDelaySec": "259200"}
    if store == EXPORTED:
        with pytest.raises(ConfigError, match="rocksDBConfigToJson"):
            check_tables(root)
        for name in ROCKSDB_TABLES:  # as the error instructs; Apache's broker wrote the JSON files
            shutil.rmtree(root / "config" / name, ignore_errors=True)
    [end] = lines(store, "end")
    return properties, FakeClock(int(end["at"]))


def wanted_counts(store: str) -> dict[str, int]:
    """Return how often each body is to be found: as often as Apache delivered it, else once."""
    recalled = {line["body"] for line in lines(store, "recalled")}
    [before] = lines(store, "delivered")
    unsent = {"open", "rollback"}
    return {
        line["body"]: max(before["counts"].get(line["body"], 0), 1)
        for line in lines(store, "sent")
        if line["body"] not in recalled and line.get("end") not in unsent
    }


@pytest.mark.sampled
@pytest.mark.finding("3C2")
@pytest.mark.parametrize("store", FILES)
def test_everything_pending_is_delivered_once_and_in_time(store: str, tmp_path: Path) -> None:
    properties, clock = opened(store, tmp_path)

    async def main() -> tuple[list[Record], list[Record]]:
        async with running(properties, clock=clock) as (broker, _):
            await rest(broker)
            before = delivered(broker)
            await advance(broker, clock, LAST_MS, by_ms=STEP_MS)
            return before, delivered(broker)

    before, after = asyncio.run(main())
    counts = Counter(record.body.decode() for record in after)
    # A killed broker may forget what it delivered of a level since it wrote its progress.
    forgotten = {body for body in counts if "-soon-" in body}
    wanted = wanted_counts(store)
    assert {body: count for body, count in counts.items() if body not in forgotten} == {
        body: count for body, count in wanted.items() if body not in forgotten
    }
    assert forgotten <= wanted.keys()
    log_end = max(record.phys_offset for record in before)
    sent = {line["body"]: line for line in lines(store, "sent")}
    for record in after:
        line = sent[record.body.decode()]
        level_ms = LEVELS_MS[line["level"]] if line["level"] else 0
        earliest_ms = line.get("due_ms", record.born_ms + level_ms)
        if record.phys_offset > log_end:  # Apache's timeline delivers up to 2 s early
            assert earliest_ms <= record.store_ms
            assert not line.get("due_ms") or record.store_ms < earliest_ms + STEP_MS


def test_popped_messages_are_popped_again_unless_they_are_acknowledged(tmp_path: Path) -> None:
    properties, clock = opened("pop", tmp_path)
    popped = {line["body"]: line for line in lines("pop", "popped")}
    open_pops = {body: line for body, line in popped.items() if not line["acknowledged"]}
    unpopped = {line["body"] for line in lines("pop", "sent")} - popped.keys()
    [(kept, kept_pop)] = [
        (body, line) for body, line in open_pops.items() if line["invisible_ms"] > HOUR_MS // 60
    ]

    async def pop(client: PopClient) -> list[str]:
        found = await client.pop("Handed")
        for message in found:
            assert (await client.ack(message)).code == 0
        return sorted(message.body.decode() for message in found)

    async def main() -> None:
        async with running(properties, clock=clock) as (broker, remote):
            await rest(broker)
            client = PopClient(remote, clock)
            assert await pop(client) == sorted(unpopped)
            await advance(broker, clock, 15_000)
            assert await pop(client) == sorted(open_pops.keys() - {kept})
            left_ms = kept_pop["pop_ms"] + kept_pop["invisible_ms"] - clock.now_ms()
            await advance(broker, clock, left_ms - 10, by_ms=10_000)
            assert await pop(client) == []
            await advance(broker, clock, 1_000)
            assert await pop(client) == [kept]
            await advance(broker, clock, 2 * HOUR_MS, by_ms=HOUR_MS // 4)
            assert await pop(client) == []

    asyncio.run(main())


def halves_of(broker: Broker) -> dict[str, Record]:
    """Return the half messages in both topics by body."""
    found: dict[str, Record] = {}
    for topic in reversed(HALF_TOPICS):
        for unit in broker.store.units(topic, 0, 0, 100):
            record = broker.store.read_record(int(unit["phys_offset"]))
            found.setdefault(record.body.decode(), record)
    return found


def test_light_queues_keep_their_messages(tmp_path: Path) -> None:
    properties, clock = opened("lmq", tmp_path)

    async def main() -> list[dict[str, list[str]]]:
        found = []
        for _ in range(2):
            async with running(properties, clock=clock) as (broker, _):
                await rest(broker)
                found.append({name: light_bodies(broker, name) for name in ("%LMQ%a", "%LMQ%b")})
        return found

    expected = {"%LMQ%a": [f"light-{n}" for n in range(4)], "%LMQ%b": ["light-0", "light-1"]}
    assert asyncio.run(main()) == [expected, expected]


def light_bodies(broker: Broker, name: str) -> list[str]:
    low, high = broker.store.queue_bounds(name, 0)
    units = broker.store.units(name, 0, low, high - low)
    records = [broker.store.read_record(int(unit["phys_offset"])) for unit in units]
    return [record.body.decode() for record in records]


@pytest.mark.finding("3C2")
def test_half_messages_of_both_kinds_are_ended_once(tmp_path: Path) -> None:
    properties, clock = opened("halves", tmp_path)

    async def end(client: BrokerClient, half: Record) -> int:
        is_rollback = b"rollback" in half.body
        fields = {
            "producerGroup": "P",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.phys_offset,
            "fromTransactionCheck": "false",
            "commitOrRollback": ROLLBACK if is_rollback else COMMIT,
            "msgId": "",
            "transactionId": "",
        }
        return (await client.call(37, fields)).code

    async def main() -> Counter[str]:
        async with running(properties, clock=clock) as (broker, client):
            await rest(broker)
            transactions = broker.parts.transactions
            assert transactions is not None
            halves = halves_of(broker)
            assert len(halves) == 6
            assert transactions.queue.open_count == 3  # of the first round, Apache lost a rollback
            for _ in range(2):
                for half in halves.values():
                    assert await end(client, half) == 0
            assert transactions.queue.open_count == 0
        async with running(properties, clock=clock) as (broker, client):
            await rest(broker)
            assert broker.parts.transactions is not None
            assert broker.parts.transactions.queue.open_count == 0
            for half in halves.values():
                assert await end(client, half) == 0
            return Counter(record.body.decode() for record in delivered(broker))

    counts = asyncio.run(main())
    ends = ("first-open", "first-commit", "second-open", "second-commit")
    bodies = {body: count for body, count in counts.items() if body.endswith("-0")}
    assert {f"{end}-0": bodies[f"{end}-0"] for end in ends} == {f"{end}-0": 1 for end in ends}
    assert not any("rollback" in body for body in bodies)
