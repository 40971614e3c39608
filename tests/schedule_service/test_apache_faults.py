"""S1 to S16: faults of Apache's level service that ours does not have."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest

from duemq_common.errors import ConfigError
from duemq_common.json_dialect import loads
from duemq_common.topics import HALF_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC
from message_store.log.batch import PutBatch
from message_store.replication.acknowledgement import Missing
from message_store.store import MessageStore
from tests.support.level_rig import level_service
from tests.support.stores import add_message

BOTH = pytest.mark.parametrize("mode", ["false", "true"], ids=["sync", "async"])


def mode_of(mode: str) -> dict[str, str]:
    return {"enableScheduleAsyncDeliver": mode}


def put_scheduled(
    store: MessageStore,
    level: int = 1,
    *,
    due_delay_ms: int = -1,
    queue_id: int | None = None,
    **properties: str,
) -> np.void:
    """Append a schedule record without the put hook."""
    batch = PutBatch(1, 1)
    text = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": "0"} | properties
    text = {name: value for name, value in text.items() if value}
    queue = level - 1 if queue_id is None else queue_id
    at = add_message(store, batch, SCHEDULE_TOPIC, queue, b"bad", properties=text)
    batch.rows[at]["due_delay_ms"] = due_delay_ms
    store.put(batch)
    return batch.rows[0].copy()


def test_s1_a_tag_hash_instead_of_a_time_is_not_delivered_at_once(tmp_path: Path) -> None:
    def put(store: MessageStore) -> None:
        for tag in ("", "TagA", "refund"):
            put_scheduled(store, 2, TAGS=tag)

    async def steps() -> None:
        async with level_service(tmp_path, before=put) as rig:
            assert rig.bodies() == []
            await rig.advance(4_999)
            assert rig.bodies() == []
            await rig.advance(1)
            assert len(rig.bodies()) == 3

    asyncio.run(steps())


def test_s1_a_lost_queue_is_rebuilt_with_the_same_due_times(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(2, b"promised 5 s")
            rig.plugin.reconfigure({"messageDelayLevel": "1s 30s"})
            rig.send(2, b"promised 30 s")
            clock = rig.clock
            rig.crash()
        shutil.rmtree(tmp_path / "consumequeue" / SCHEDULE_TOPIC)
        (tmp_path / "config" / "duemq.mark").unlink()
        async with level_service(tmp_path, clock, {"messageDelayLevel": "1s 2m"}) as rig:
            for step_ms, count in [(4_999, 0), (1, 1), (24_999, 1), (1, 2)]:
                await rig.advance(step_ms)
                assert len(rig.bodies()) == count

    asyncio.run(steps())


def test_s2_a_shortened_level_keeps_earlier_due_times(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(4, b"in a minute")
            rig.plugin.reconfigure({"messageDelayLevel": "1s 1s 1s 1s"})
            await rig.advance(59_999)
            assert rig.bodies() == []
            await rig.advance(1)
            assert rig.bodies() == [b"in a minute"]

    asyncio.run(steps())


def test_s2_a_clock_step_back_makes_nothing_early(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(2)
            await rig.advance(-3_600_000)
            assert rig.bodies() == []
            await rig.advance(3_600_000 + 4_999)
            assert rig.bodies() == []
            await rig.advance(1)
            assert len(rig.bodies()) == 1

    asyncio.run(steps())


@BOTH
def test_s3_s12_a_kill_between_two_writes_of_the_offsets_duplicates_nothing(
    tmp_path: Path, mode: str
) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            rig.send(1, count=3_000)
            assert await rig.persist()
            await rig.advance(1_000)
            rig.send(1, count=10)
            clock = rig.clock
            rig.crash()
        async with level_service(tmp_path, clock, mode_of(mode)) as rig:
            await rig.advance(1_000)
            bodies = rig.bodies()
            assert len(bodies) == 3_010
            assert bodies[:3_000] == [b"body%d" % n for n in range(3_000)]

    asyncio.run(steps())


def test_s4_lost_offsets_duplicate_nothing(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=30)
            await rig.advance(1_000)
            clock = rig.clock
        for path in (tmp_path / "config").glob("delayOffset.json*"):
            path.unlink()
        async with level_service(tmp_path, clock) as rig:
            assert len(rig.bodies()) == 30

    asyncio.run(steps())


def test_s5_an_unreadable_record_is_kept_and_reported(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            row = rig.send(1, b"damaged", UNIQ_KEY="U1").rows[0].copy()
            rig.send(1, b"whole")
            file = rig.store.log.file_of(int(row["phys_offset"]))
            file.write(int(row["phys_offset"]) - file.base + 90, b"\xff")
            await rig.advance(1_000)
            assert rig.bodies() == [b"whole"]
            (kept,) = rig.records(QUARANTINE_TOPIC)
            assert kept.properties["DUEMQ_REASON"] == "unreadable"
            assert kept.properties["UNIQ_KEY"] == "U1"
            assert len(kept.body) == row["record_size"]
            assert kept.prepared_offset == -(int(row["phys_offset"]) + 1)
            assert rig.service.levels[1].stats.quarantined == {"unreadable": 1}

    asyncio.run(steps())


def test_s5_retention_keeps_pending_messages(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            assert rig.plugin.first_pending_offset() is None
            rig.send(1)
            later = rig.send(4).rows[0]["phys_offset"]
            assert rig.plugin.first_pending_offset() == 0
            await rig.advance(1_000)
            assert rig.plugin.first_pending_offset() == 0  # not synced yet
            assert await rig.persist()
            assert rig.plugin.first_pending_offset() == later

    asyncio.run(steps())


@BOTH
@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"REAL_QID": ""}, "no_target"),
        ({"REAL_QID": "x"}, "no_target"),
        ({"REAL_QID": "-1"}, "no_target"),
        ({"REAL_TOPIC": ""}, "no_target"),
        ({"REAL_TOPIC": SCHEDULE_TOPIC}, "no_target"),
        ({"REAL_TOPIC": "absent"}, "topic_missing"),
        ({"REAL_TOPIC": HALF_TOPIC}, "half_message"),
    ],
)
def test_s6_s7_an_undeliverable_record_is_kept_and_blocks_nothing(
    tmp_path: Path, mode: str, properties: dict[str, str], reason: str
) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            rig.send(1, b"before")
            put_scheduled(rig.store, 1, due_delay_ms=1_000, **properties)
            rig.send(1, b"after")
            await rig.advance(1_000)
            assert rig.bodies() == [b"before", b"after"]
            (kept,) = rig.records(QUARANTINE_TOPIC)
            assert kept.properties["DUEMQ_REASON"] == reason
            assert kept.properties["DUEMQ_QUEUE_OFFSET"] == "1"
            assert b"bad" in kept.body
            clock = rig.clock
            rig.crash()
        async with level_service(tmp_path, clock, mode_of(mode)) as rig:
            assert len(rig.bodies()) == 2
            assert len(rig.records(QUARANTINE_TOPIC)) == 1

    asyncio.run(steps())


@BOTH
def test_s8_a_smaller_maximum_does_not_block_what_was_accepted(tmp_path: Path, mode: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, b"x" * 15_000)
            rig.send(1, b"")
            clock = rig.clock
        async with level_service(tmp_path, clock, mode_of(mode), message_bytes_max=10) as rig:
            await rig.advance(1_000)
            assert [len(body) for body in rig.bodies()] == [15_000, 0]

    asyncio.run(steps())


@BOTH
def test_s9_a_slow_disk_duplicates_nothing(tmp_path: Path, mode: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            results = [Missing.DISK, Missing.REPLICAS, Missing.NO_REPLICA, None]
            waits = []

            async def wait_confirmed(end: int) -> Missing | None:
                waits.append(end)
                return results.pop(0) if results else None

            rig.store.wait_confirmed = wait_confirmed
            rig.send(1, count=5)
            rig.clock.advance(1_000)
            for _ in range(5):
                for _ in range(50):
                    await asyncio.sleep(0)
                rig.clock.advance(100)
            await rig.settle()
            assert len(waits) >= 4
            assert len(rig.bodies()) == 5
            assert len(rig.service.levels[1].in_flight) == 0

    asyncio.run(steps())


@BOTH
def test_s10_saved_offsets_never_exceed_logged_deliveries(tmp_path: Path, mode: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            rig.send(1, b"refused")
            rig.clock.advance(500)
            rig.send(1, b"not due")
            rig.store.gate.refusal = "the disk is full"
            await rig.advance(500)
            assert await rig.persist()
            text = (tmp_path / "config" / "delayOffset.json").read_text()
            assert loads(text)["offsetTable"] == {1: 0}
            rig.store.gate.refusal = ""
            await rig.advance(60_000)
            assert rig.bodies() == [b"refused", b"not due"]

    asyncio.run(steps())


def test_s11_saved_offsets_never_exceed_synced_deliveries(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, flush_commitlog_interval_ms=10**8) as rig:
            rig.send(1)
            await rig.advance(1_000)
            flushed = rig.store.durable_offset
            assert flushed < rig.store.max_offset
            assert await rig.persist()
            assert rig.store.durable_offset == rig.store.max_offset
            saved = loads((tmp_path / "config" / "delayOffset.json").read_text())
            assert saved["commitLogOffset"] == rig.store.durable_offset

            async def never(end: int) -> bool:
                return False

            rig.send(1)
            await rig.advance(1_000)
            rig.store.wait_durable, real = never, rig.store.wait_durable
            assert not await rig.persist()
            rig.store.wait_durable = real
            again = loads((tmp_path / "config" / "delayOffset.json").read_text())
            assert again == saved

    asyncio.run(steps())


def test_s13_every_level_delivers_at_its_millisecond_during_a_backlog(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties={"scheduleDeliverBatchRecords": "10"}) as rig:
            rig.send(1, count=2_000)
            rig.clock.advance(600)
            rig.send(1, b"later")
            rig.send(3, b"ten seconds")
            await rig.advance(400)
            assert len(rig.bodies()) == 2_000
            await rig.advance(600)
            await rig.advance(9_000)
            late = rig.service.levels[3].stats
            assert (late.lateness[0].max_ms, late.delivered) == (0, 1)
            assert rig.service.levels[1].stats.lateness[0].max_ms == 0

    asyncio.run(steps())


def test_s13_nothing_is_polled(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(4)
            await rig.settle()
            reads = []
            units = rig.store.units
            rig.store.units = lambda *args: reads.append(args) or units(*args)  # type: ignore[func-returns-value]
            for _ in range(100):
                await rig.advance(500)
            assert reads == []
            await rig.advance(10_000)
            assert len(rig.bodies()) == 1

    asyncio.run(steps())


def test_s14_a_half_message_is_not_delayed(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", HALF_TOPIC)) as rig:
            batch = PutBatch(1, 1)
            add_message(rig.store, batch, HALF_TOPIC, 0, b"half", properties={"DELAY": "1"})
            rig.put(batch)
            assert rig.bodies(HALF_TOPIC) == [b"half"]

    asyncio.run(steps())


@BOTH
def test_s15_an_earlier_due_time_is_not_delayed_by_a_later_one(tmp_path: Path, mode: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            rig.send(4, b"long")
            rig.plugin.reconfigure({"messageDelayLevel": "1s 5s 10s 2s", **mode_of(mode)})
            rig.send(4, b"short")
            await rig.advance(2_000)
            assert rig.bodies() == [b"short"]
            assert await rig.persist()
            clock = rig.clock
            rig.crash()
        async with level_service(tmp_path, clock, mode_of(mode)) as rig:
            assert rig.bodies() == [b"short"]
            assert rig.service.levels[4].cursor.pending == 1
            await rig.advance(58_000)
            assert rig.bodies() == [b"short", b"long"]

    asyncio.run(steps())


def test_s16_a_bad_token_in_a_reload_changes_nothing(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            with pytest.raises(ConfigError, match="token 2 is '5x'"):
                rig.plugin.reconfigure({"messageDelayLevel": "1s 5x"})
            rig.send(2)
            await rig.advance(5_000)
            assert len(rig.bodies()) == 1

    asyncio.run(steps())


def test_s16_an_illegal_token_is_reported_at_the_start(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties={"messageDelayLevel": "1s 5x"}):
            pass

    with pytest.raises(ConfigError, match="token 2 is '5x'"):
        asyncio.run(steps())
