"""The level service on a real store: deliveries are on time, in order and once."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from duemq_common.topics import QUARANTINE_TOPIC, SCHEDULE_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.commit_log import LogFile
from message_store.queues.consume_queue import ConsumeQueue
from schedule_service import delivery
from tests.support.level_rig import level_service
from tests.support.replica_rig import until
from tests.support.stores import add_message

BOTH = pytest.mark.parametrize("mode", ["false", "true"], ids=["sync", "async"])


def mode_of(mode: str, **more: str) -> dict[str, str]:
    return {"enableScheduleAsyncDeliver": mode, **more}


def test_a_message_is_delivered_at_its_millisecond(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, b"one", TAGS="TagA")
            rig.send(2, b"five", queue_id=2)
            await rig.advance(999)
            assert rig.bodies() == []
            await rig.advance(1)
            (record,) = rig.records()
            assert record.body == b"one"
            assert record.properties["REAL_TOPIC"] == "T"
            assert record.properties["DELAY"] == "1"
            assert record.prepared_offset == -1
            assert rig.store.units("T", 0, 0, 1)[0]["tags_code"] == 2_598_919
            await rig.advance(3_999)
            assert rig.bodies(queue_id=2) == []
            await rig.advance(1)
            assert rig.bodies(queue_id=2) == [b"five"]

    asyncio.run(steps())


@BOTH
def test_messages_a_millisecond_apart_are_delivered_a_millisecond_apart(
    tmp_path: Path, mode: str
) -> None:
    """A delivery does not include messages due in the next milliseconds."""

    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            for number in range(10):
                rig.send(1, b"%d" % number)
                await rig.advance(1)
            await rig.advance(1_000 - 10)
            for number in range(10):
                assert rig.bodies() == [b"%d" % n for n in range(number + 1)]
                assert rig.records()[-1].store_ms == rig.clock.now_ms()
                await rig.advance(1)

    asyncio.run(steps())


@BOTH
@pytest.mark.parametrize(("shared_bytes", "counts"), [(None, [3, 3, 3]), (1, [1, 2, 3])])
def test_levels_that_are_due_together_share_a_turn_if_their_batches_are_small(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    shared_bytes: int | None,
    counts: list[int],
) -> None:
    """Counts: messages that a pull finds that is resumed by the first, second and third append."""
    if shared_bytes is not None:
        monkeypatch.setattr(delivery, "SHARED_TURN_BYTES", shared_bytes)

    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            for level, after_ms in ((3, 5_000), (2, 4_000), (1, 0)):  # 10 s, 5 s, 1 s
                rig.send(level)
                await rig.advance(after_ms)
            found: list[int] = []
            loop = asyncio.get_running_loop()
            rig.store.add_dispatcher(
                lambda batch: _none(loop.call_soon(lambda: found.append(len(rig.bodies()))))
            )
            await rig.advance(1_000)
            assert found == counts

    asyncio.run(steps())


def _none(handle: asyncio.Handle) -> None:
    """Ignore the handle of a call."""


def test_a_delivered_record_equals_apaches(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            batch = PutBatch(1, 1)
            at = add_message(
                rig.store,
                batch,
                "T",
                3,
                b"body",
                flag=7,
                sys_flag=9,
                reconsume_times=2,
                properties={"WAIT": "true", "KEYS": "k", "TAGS": "TagA", "DELAY": "1"},
            )
            batch.rows[at]["born_ms"] = 77
            batch.rows[at]["store_port"] = 4_711
            rig.put(batch)
            await rig.advance(1_000)
            (record,) = rig.records("T", 3)
            origin = rig.store.read_record(0)
            same = ["body", "flag", "sys_flag", "born_ms", "born_host", "store_host"]
            for name in [*same, "reconsume_times", "property_text", "body_crc"]:
                assert getattr(record, name) == getattr(origin, name), name
            assert record.store_ms == rig.clock.now_ms()
            assert list(record.properties) == [
                "WAIT",
                "KEYS",
                "TAGS",
                "DELAY",
                "REAL_TOPIC",
                "REAL_QID",
            ]

    asyncio.run(steps())


def test_a_queue_beyond_the_write_queues_is_created(tmp_path: Path) -> None:
    """The send was accepted with this queue; Apache creates it, too."""

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, b"far", queue_id=11)
            await rig.advance(1_000)
            assert rig.bodies(queue_id=11) == [b"far"]

    asyncio.run(steps())


def test_retry_topics_are_delivered_like_others(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", "%RETRY%group")) as rig:
            rig.send(3, b"again", topic="%RETRY%group")
            await rig.advance(10_000)
            assert rig.bodies("%RETRY%group") == [b"again"]

    asyncio.run(steps())


def test_a_deleted_topic_goes_to_quarantine(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", "gone")) as rig:
            rig.send(1, b"lost?", topic="gone", KEYS="k1")
            rig.store.topics.set_routing("gone", write_queues=0, read_queues=0, perm=0)
            await rig.advance(1_000)
            (kept,) = rig.records(QUARANTINE_TOPIC)
            assert kept.properties["DUEMQ_REASON"] == "topic_missing"
            assert kept.properties["DUEMQ_TOPIC"] == "gone"
            assert kept.properties["KEYS"] == "k1"
            assert rig.bodies("gone") == []

    asyncio.run(steps())


def test_after_an_outage_everything_overdue_is_delivered_in_order(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            for level in (1, 2, 3, 4):
                rig.send(level, b"%d-" % level, count=300, queue_id=level)
            clock = rig.clock
            rig.crash()
        clock.advance(90 * 86_400_000)
        async with level_service(tmp_path, clock) as rig:
            for level in (1, 2, 3, 4):
                assert rig.bodies(queue_id=level) == [b"%d-%d" % (level, n) for n in range(300)]
                assert rig.service.levels[level].stats.lateness[0].max_ms > 89 * 86_400_000

    asyncio.run(steps())


@BOTH
def test_deliveries_are_retried_on_a_full_disk(tmp_path: Path, mode: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            rig.send(1, count=30)
            rig.store.gate.refusal = "the disk is full"
            await rig.advance(1_000)
            level = rig.service.levels[1]
            assert (rig.bodies(), level.cursor.pending) == ([], 30)
            failures = []
            for _ in range(8):
                await rig.advance(150)
                failures.append(level.in_flight.failing.failures)
            assert failures == sorted(failures)
            assert failures[-1] < 6  # the pauses grow
            rig.store.gate.refusal = ""
            await rig.advance(2_000)
            assert rig.bodies() == [b"body%d" % n for n in range(30)]

    asyncio.run(steps())


@BOTH
@pytest.mark.parametrize("writes", range(1, 5))
def test_a_partly_failed_write_duplicates_nothing(tmp_path: Path, mode: str, writes: int) -> None:
    async def steps() -> None:
        properties = mode_of(mode, scheduleDeliverBatchRecords="20")
        async with level_service(tmp_path, properties=properties, topics=("T",)) as rig:
            rig.send(1, count=150, padding="x" * 900)
            left, file_of = [writes], type(rig.store.log.files[0])
            write = file_of.write

            def failing(self: LogFile, pos: int, data: memoryview | bytes) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(28, "No space left on device")
                write(self, pos, data)

            file_of.write = failing
            try:
                await rig.advance(1_000)
            finally:
                file_of.write = write
            assert not rig.store.writable
            rig.store.check_disk()
            await rig.advance(2_000)
            assert rig.bodies() == [b"body%d" % n for n in range(150)]

    asyncio.run(steps())


def test_a_refused_quarantine_record_is_written_later(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", "gone")) as rig:
            rig.send(1, b"nowhere", topic="gone")
            rig.send(1, b"after")
            rig.store.topics.set_routing("gone", write_queues=0, read_queues=0, perm=0)
            rig.store.gate.refusal = "the disk is full"
            await rig.advance(1_000)
            assert rig.service.levels[1].in_flight.failing.state.name == "SKIP"
            rig.store.gate.refusal = ""
            await rig.advance(1_000)
            assert rig.bodies() == [b"after"]
            assert len(rig.records(QUARANTINE_TOPIC)) == 1

    asyncio.run(steps())


def test_async_flow_control_and_blocking(tmp_path: Path) -> None:
    async def steps() -> None:
        properties = mode_of(
            "true",
            scheduleAsyncDeliverMaxPendingLimit="10",
            scheduleAsyncDeliverMaxResendNum2Blocked="3",
            scheduleDeliverBatchRecords="4",
        )
        async with level_service(tmp_path, properties=properties) as rig:
            rig.send(1, count=100)
            rig.store.gate.refusal = "the disk is full"
            table_sizes = []
            await rig.advance(1_000)
            level = rig.service.levels[1]
            table_sizes.append(level.in_flight.records)
            assert table_sizes == [10]
            assert level.room(rig.service.config) == 0
            for _ in range(12):
                await rig.advance(200)
            assert level.in_flight.failing.failures > 3
            rig.store.gate.refusal = ""
            await rig.advance(60_000)
            assert rig.bodies() == [b"body%d" % n for n in range(100)]

    asyncio.run(steps())


def test_async_blocks_new_deliveries_after_three_failures(tmp_path: Path) -> None:
    async def steps() -> None:
        properties = mode_of("true", scheduleAsyncDeliverMaxPendingLimit="1000")
        async with level_service(tmp_path, properties=properties) as rig:
            rig.send(1, count=3)
            rig.store.gate.refusal = "the disk is full"
            await rig.advance(1_000)
            level = rig.service.levels[1]
            rig.store.gate.refusal = ""
            rig.send(1, count=4)
            rig.store.gate.refusal = "the disk is full"
            while level.in_flight.failing.failures <= 3:
                assert level.room(rig.service.config) > 0
                await rig.advance(100)
            assert level.room(rig.service.config) == 0

    asyncio.run(steps())


@BOTH
def test_a_removed_head_is_counted_and_the_queue_continues(tmp_path: Path, mode: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            rig.send(1, b"x" * 3_000, count=60)
            rig.send(4, b"y" * 3_000, count=10)
            assert len(rig.store.log.files) > 2
            rig.store.log.detach_first().erase()
            rig.store.queues.correct_min(rig.store.min_offset)
            first, _ = rig.store.queue_bounds(SCHEDULE_TOPIC, 0)
            assert first > 0
            await rig.advance(1_000)
            level = rig.service.levels[1]
            assert (level.stats.lost, level.stats.delivered) == (first, 60 - first)
            assert level.cursor.pending == 0
            await rig.advance(60_000)
            assert rig.service.levels[4].stats.delivered == 10

    asyncio.run(steps())


def test_other_tasks_run_between_batches(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(
            tmp_path, properties={"scheduleDeliverBatchRecords": "100"}
        ) as rig:
            rig.send(1, count=5_000)
            seen: list[Any] = []

            async def other() -> None:
                while len(seen) < 1_000:
                    seen.append(rig.service.levels[1].stats.delivered)
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            await rig.advance(1_000)
            await task
            steps = sorted({b - a for a, b in pairwise(seen)})
            assert steps[-1] <= 100

    asyncio.run(steps())


def test_levels_take_turns(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties={"scheduleDeliverBatchRecords": "64"}) as rig:
            rig.send(1, b"a", count=1_000)
            rig.send(2, b"b", count=64)
            await rig.advance(5_000)
            bodies = rig.bodies()
            last_b = max(n for n, body in enumerate(bodies) if body.startswith(b"b"))
            assert last_b < 400

    asyncio.run(steps())


def test_batches_are_limited_in_bytes(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties={"scheduleDeliverBatchBytes": "7000"}) as rig:
            rig.send(1, b"x" * 3_000, count=8)
            rig.send(1, b"x" * 15_000)
            sizes = []
            put = rig.store.put
            rig.store.put = lambda batch: sizes.append(batch.count) or put(batch)  # type: ignore[func-returns-value]
            await rig.advance(1_000)
            assert sizes == [2, 2, 2, 2, 1]

    asyncio.run(steps())


def test_sync_flush_waits_for_the_disk(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, flush_disk_type="SYNC_FLUSH") as rig:
            rig.send(1, count=10)
            await rig.advance(1_000)
            assert len(rig.bodies()) == 10
            assert rig.store.durable_offset == rig.store.max_offset

    asyncio.run(steps())


@BOTH
def test_a_clock_step_back_prolongs_no_pause(tmp_path: Path, mode: str) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, properties=mode_of(mode)) as rig:
            rig.send(1, count=5)
            rig.store.gate.refusal = "the disk is full"
            await rig.advance(10_000_000)
            rig.store.gate.refusal = ""
            rig.clock.advance(-7_200_000)
            await rig.settle()
            await rig.advance(500)
            assert len(rig.bodies()) == 5

    asyncio.run(steps())


def test_deliveries_before_an_error_in_their_batch_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has changed a unit, and does not accept the correction: the broker stops."""

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=10)
            await rig.persist()
            queue = rig.store.queues.find(SCHEDULE_TOPIC, 0)
            unit = rig.store.units(SCHEDULE_TOPIC, 0, 5, 1).copy()
            unit["tags_code"] -= 1
            queue.rewrite(5, unit)
            write = ConsumeQueue.write

            def refuse_schedule(other: ConsumeQueue, first_offset: int, block: memoryview) -> None:
                if other is queue:
                    raise OSError(errno.EIO, "refused")
                write(other, first_offset, block)

            with monkeypatch.context() as patch:
                patch.setattr(ConsumeQueue, "write", refuse_schedule)
                rig.clock.advance(1_000)
                await until(lambda: rig.host.stopped)
            rig.host.stopped.clear()
            assert len(rig.bodies()) == 5
        async with level_service(tmp_path, rig.clock) as rig:
            assert rig.bodies() == [b"body%d" % number for number in range(10)]

    asyncio.run(steps())
