"""Recurring schedules: lateness after their creation, and a start with a million of them.

    python -m benchmarks.schedules create --schedules 10000 --root DIR
    python -m benchmarks.schedules start --schedules 1000000 --root DIR

The first command creates schedules by messages. The second one fills the store through the library,
once: a later run with the same root only starts the broker, kills it and starts it again. The
occurrences since the fill or the last run are a backlog, which the broker appends after its start,
while a client sends other timers. Lateness is computed from the store time of each message.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.machine import shared_with_others
from delayed_delivery.quarantine import NO_HOST
from duemq.client import Message, Producer
from duemq_common.clock import FakeClock, SystemClock
from duemq_common.topics import SCHEDULES_TOPIC, TIMER_TOPIC
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.store import MessageStore
from recurring_schedules import journal
from recurring_schedules.checkpoint import ScheduleCheckpoints
from recurring_schedules.definition import Definition
from recurring_schedules.journal import ScheduleRecord
from recurring_schedules.messages import add_occurrence
from recurring_schedules.names import JOURNAL_QUEUE
from recurring_schedules.occurrences import next_after
from recurring_schedules.plugin import recovered_table
from tests.support.duemq_server import DueMQ
from tests.support.stores import records_of
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.store import TimerStore

TOPIC, OTHER_TOPIC, QUEUES = "bench_schedules", "bench_others", 4
BODY: Final = b"x" * 50
KEYS: Final = {"timerWheelEnable": "true"}
ROWS: Final = 2_048
IN_FLIGHT: Final = 64
IDLE_S: Final = 5  # until the memory of loading is returned
OTHERS, OTHERS_AFTER_S, OTHERS_SPREAD_S = 2_000, 2, 8
MIB: Final = 1 << 20


def main() -> None:
    """Run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measurement", choices=("create", "start"))
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--per-second", type=int, default=500, help="occurrences of all schedules")
    parser.add_argument("--seconds", type=int, default=40, help="time of the measurement")
    parser.add_argument("--root", type=Path, required=True, help="directory, which is kept")
    options = parser.parse_args()
    with shared_with_others() as shared:
        measure = measure_creation if options.measurement == "create" else measure_start
        measure(DueMQ(options.root, keys=KEYS), options)
    print(shared.as_text())


def definition(number: int, count: int, per_second: int) -> Definition:
    """Return one of `count` schedules, whose occurrences are evenly spread."""
    return Definition(
        name=f"schedule-{number}",
        topic=TOPIC,
        every_ms=count * 1_000 // per_second,
        phase_ms=number * 1_000 // per_second,
        body=BODY,
    )


# -- created by messages --------------------------------------------------------------------------


def measure_creation(server: DueMQ, options: argparse.Namespace) -> None:
    """Create schedules at a running broker, and print the lateness by time after the creation."""
    with server:
        server.create_topic(TOPIC, queue_count=QUEUES)
        start_ms = _now_ms()
        asyncio.run(create(server.namesrv_address, options.schedules, options.per_second))
        created_ms = _now_ms()
        print(f"created in {(created_ms - start_ms) / 1_000:.1f} s")
        time.sleep(options.seconds)
    due_ms, late_ms = lateness(server.store_dir, TOPIC)
    for first_s, end_s in ((-60, 0), (0, 3), (3, 20), (20, options.seconds)):
        inside = (due_ms >= created_ms + first_s * 1_000) & (due_ms < created_ms + end_s * 1_000)
        report(f"due {first_s} to {end_s} s after the creation", late_ms[inside])
    show_stalls(due_ms, late_ms, created_ms)


async def create(namesrv: str, count: int, per_second: int) -> None:
    """Create schedules by messages, as a client of any language does."""
    async with Producer(namesrv) as producer:
        left = iter(range(count))

        async def sender() -> None:
            for number in left:
                schedule = definition(number, count, per_second)
                properties = {
                    "DUEMQ_SCHEDULE_NAME": schedule.name,
                    "DUEMQ_SCHEDULE_EVERY_MS": str(schedule.every_ms),
                    "DUEMQ_SCHEDULE_PHASE_MS": str(schedule.phase_ms),
                }
                await producer.send(Message(TOPIC, BODY, properties=properties))

        await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))


# -- a start with many ----------------------------------------------------------------------------


def measure_start(server: DueMQ, options: argparse.Namespace) -> None:
    """Fill a store if it does not exist, start a broker on it twice, and print the figures."""
    with DueMQ(options.root / "empty", keys=KEYS) as other:
        time.sleep(IDLE_S)
        empty = other.broker.memory_bytes()["anonymous"]
        print(f"empty broker: {other.broker.cpu_seconds():.2f} s of processor time")
    if not server.store_dir.exists():
        with server:
            server.create_topic(TOPIC, queue_count=QUEUES)
            server.create_topic(OTHER_TOPIC, queue_count=QUEUES)
        start_s = time.perf_counter()
        fill(server.store_dir, options)
        print(f"filled in {time.perf_counter() - start_s:.0f} s")
    for kind in ("with a backlog", "after kill -9"):
        start_s = time.perf_counter()
        server.start()
        print(f"start {kind}: {time.perf_counter() - start_s:.2f} s", end=", ")
        ready_ms = _now_ms()
        print(f"{server.broker.cpu_seconds():.2f} s of processor time")
        asyncio.run(send_others(server.namesrv_address))
        time.sleep(options.seconds)
        anonymous = server.broker.memory_bytes()["anonymous"]
        print(f"memory: {(anonymous - empty) / MIB:.0f} MiB more than an empty broker")
        server.kill()
        due_ms, late_ms = lateness(server.store_dir, TOPIC, ready_ms)
        backlog_end_ms = int((due_ms + late_ms)[due_ms <= ready_ms].max(initial=ready_ms))
        print(f"backlog of {(due_ms <= ready_ms).sum()} in {backlog_end_ms - ready_ms} ms")
        report("occurrences after the backlog", late_ms[due_ms > backlog_end_ms])
        report("other timers", lateness(server.store_dir, OTHER_TOPIC, ready_ms)[1])


def fill(root: Path, options: argparse.Namespace) -> None:
    """Put schedules with their first occurrences into the store of a stopped broker."""
    clock = FakeClock(_now_ms())  # the time does not pass, so nothing is due during the fill
    with MessageStore(StoreConfig(root_text=str(root)), clock) as store:
        own = (TIMER_TOPIC, 1), (SCHEDULES_TOPIC, 1)
        for name, queues in (*own, (TOPIC, QUEUES)):  # not persisted
            store.topics.set_routing(name, write_queues=queues, read_queues=queues, perm=6)
        timers = TimerStore(store, clock, TimerConfig())
        timers.open()
        store.add_dispatcher(timers.on_put)
        hook = TimerHook(store.topics, timers.config, timers.units.wheel.num)
        table = recovered_table(store)
        batch = PutBatch(ROWS)
        for numbers in np.array_split(np.arange(options.schedules), -(-options.schedules // ROWS)):
            schedules = [
                definition(n, options.schedules, options.per_second) for n in numbers.tolist()
            ]
            put_schedules(store, batch, hook, schedules, clock.now_ms())
            while timers.turn(clock.now_ms()):
                pass
        table.replay(store, print)
        assert len(table) == options.schedules
        assert asyncio.run(CheckpointWriter(timers).persist(last=True))
        asyncio.run(ScheduleCheckpoints(store, table, clock).persist())
        timers.close()


def put_schedules(
    store: MessageStore, batch: PutBatch, hook: TimerHook, schedules: list[Definition], now_ms: int
) -> None:
    """Append the definitions, then the first occurrence of each."""
    times = [next_after(each, now_ms) or 0 for each in schedules]
    batch.clear()
    for each, planned_ms in zip(schedules, times, strict=True):
        record = ScheduleRecord(definition=each, planned_ms=now_ms, next_ms=planned_ms)
        batch.add(
            topic_index=store.topics.find(SCHEDULES_TOPIC),
            queue_id=JOURNAL_QUEUE,
            body=journal.encode(record),
            properties=b"",
            born_ms=now_ms,
            born_host=NO_HOST,
            store_host=NO_HOST,
        )
    batch.trusted = True
    store.put(batch)
    batch.clear()
    batch.trusted = False
    for each, planned_ms in zip(schedules, times, strict=True):
        add_occurrence(
            batch,
            store.topics,
            each,
            planned_ms,
            next_ms=planned_ms + each.every_ms,
            due_ms=planned_ms,
            now_ms=now_ms,
        )
    hook(batch, now_ms)
    store.put(batch)
    assert not batch.filled["status"].any(), batch.remarks


async def send_others(namesrv: str) -> None:
    """Send timers that are not occurrences, due within the next seconds."""
    first = datetime.now(UTC) + timedelta(seconds=OTHERS_AFTER_S)
    step = timedelta(seconds=OTHERS_SPREAD_S) / OTHERS
    async with Producer(namesrv) as producer:
        left = iter(range(OTHERS))

        async def sender() -> None:
            for number in left:
                due = first + step * number
                properties = {"due": str(round(due.timestamp() * 1_000))}
                message = Message(OTHER_TOPIC, BODY, deliver_at=due, properties=properties)
                await producer.send(message)

        await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))


# -- results --------------------------------------------------------------------------------------


def lateness(
    root: Path, topic: str, after_ms: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return due time and lateness of the messages stored after a time, in ms."""
    with MessageStore(StoreConfig(root_text=str(root)), SystemClock()) as store:
        records = [each for queue in range(QUEUES) for each in records_of(store, topic, queue)]
    pairs = [(_due_ms(each), each.store_ms) for each in records if each.store_ms > after_ms]
    due_ms, store_ms = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    return due_ms, store_ms - due_ms


def _due_ms(record: Record) -> int:
    return int(record.properties.get("DUEMQ_SCHEDULE_TIME") or record.properties["due"])


def report(kind: str, late_ms: npt.NDArray[np.int64]) -> None:
    """Print the distribution of lateness."""
    if late_ms.size:
        middle, high, most = np.percentile(late_ms, [50, 99, 100])
        print(
            f"{kind}: {late_ms.size}, late by {middle:.0f} (p50), {high:.0f} (p99), {most:.0f} ms"
        )


def show_stalls(
    due_ms: npt.NDArray[np.int64], late_ms: npt.NDArray[np.int64], since_ms: int
) -> None:
    """Print each second whose latest message was later than 20 ms."""
    seconds = (due_ms - since_ms) // 1_000
    for second in np.unique(seconds[late_ms > 20]).tolist():
        late = late_ms[seconds == second]
        print(f"  second {second}: {late.size} messages, {np.sum(late > 20)} late, {late.max()} ms")


def _now_ms() -> int:
    return SystemClock().now_ms()


if __name__ == "__main__":
    main()
