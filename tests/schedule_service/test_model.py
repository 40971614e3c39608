"""State machine of the level service, compared with a list of messages.

Rules: random sends, clock steps, level changes, disk failures, retention, crashes with torn ends,
and lost queues. After each rule no message may be early, duplicated or missing after its due time,
and each level must be in order.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from delayed_delivery.level_delays import parse_levels
from duemq_common.clock import FakeClock
from message_store.recovery import checkpoint
from tests.support.level_rig import Rig, level_service

LEVEL_TEXTS = ["1s 5s 10s 1m", "5s 1s 1m", "1m 1m 1s 2s", "0s 1s"]
QUEUES = 2


@dataclass
class Sent:
    """A message that was acknowledged."""

    number: int
    level: int
    due_ms: int
    phys_offset: int
    queue_offset: int


@dataclass
class Delivered:
    """A message in its topic."""

    number: int
    phys_offset: int
    store_ms: int


class Driver:
    """Runs level services in a task; rules send it commands."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        self.loop = asyncio.new_event_loop()
        self.root, self.clock = root, clock
        self.rig: Rig | None = None

    def start(self, properties: dict[str, str]) -> None:
        self._commands: asyncio.Queue[Any] = asyncio.Queue()
        ready = self.loop.create_future()
        self._task = self.loop.create_task(self._live(properties, ready))
        self.loop.run_until_complete(
            asyncio.wait([ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        )
        if not ready.done():
            self._task.result()

    async def _live(self, properties: dict[str, str], ready: asyncio.Future[None]) -> None:
        found = level_service(
            self.root,
            self.clock,
            properties,
            before=self._read_recovered,
            flush_commitlog_interval_ms=100_000_000,  # no flush in the background
        )
        async with found as self.rig:
            ready.set_result(None)
            while (command := await self._commands.get()) is not None:
                work, done = command
                try:
                    done.set_result(await work())
                except BaseException as error:
                    done.set_exception(error)

    def _read_recovered(self, store: Any) -> None:
        """Record the state after recovery, before any delivery."""
        self.log_end = store.max_offset
        self.ends = {queue: store.queue_bounds("T", queue)[1] for queue in range(QUEUES)}

    def do(self, work: Callable[[], Any]) -> Any:
        done = self.loop.create_future()
        self._commands.put_nowait((work, done))
        return self.loop.run_until_complete(done)

    def stop(self) -> None:
        self._commands.put_nowait(None)
        self.loop.run_until_complete(self._task)

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class LevelsMachine(RuleBasedStateMachine):
    """The level service and the list side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="duemq-model-"))
        self.boot = 1
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(checkpoint, "_boot_id", lambda: b"boot %d" % self.boot)
        self.clock = FakeClock()
        self.driver = Driver(self.root, self.clock)
        self.properties = {"messageDelayLevel": LEVEL_TEXTS[0]}
        self.sent: list[Sent] = []
        self.got: list[Delivered] = []
        self.read = dict.fromkeys(range(QUEUES), 0)
        self.high_ms = self.clock.now_ms()
        self.number = 0
        self.disk_full = False
        self.tables: list[bytes] = []  # contents of delayOffset.json, oldest first

    @property
    def rig(self) -> Rig:
        assert self.driver.rig is not None
        return self.driver.rig

    @initialize(asynchronous=st.booleans(), batch=st.sampled_from([1, 3, 2048]))
    def start(self, asynchronous: bool, batch: int) -> None:
        self.properties["enableScheduleAsyncDeliver"] = str(asynchronous).lower()
        self.properties["scheduleDeliverBatchRecords"] = str(batch)
        self.properties["scheduleAsyncDeliverMaxPendingLimit"] = "4"
        self.driver.start(self.properties)

    @rule(
        level=st.integers(1, 5),
        count=st.integers(1, 20),
        size=st.sampled_from([10, 10, 3_000]),
        step_ms=st.sampled_from([0, 1, 1_000, 5_000, -20_000]),
    )
    def send_and_advance(self, level: int, count: int, size: int, step_ms: int) -> None:
        self.send(level, count, size)
        self.advance(step_ms)

    @rule(
        what=st.lists(
            st.sampled_from(["mode", "disk", "persist", "oldest", "restart", *LEVEL_TEXTS]),
            min_size=1,
            max_size=3,
        )
    )
    def disturb(self, what: list[str]) -> None:
        for one in what:
            if one in LEVEL_TEXTS:
                self.change_levels(one)
            else:
                getattr(self, f"do_{one}")()

    def send(self, level: int, count: int, size: int) -> None:
        delays = parse_levels(self.properties["messageDelayLevel"])
        held = min(level, delays.size - 1)
        for _ in range(count):
            body = b"%d." % self.number + b"x" * size
            batch = self.rig.send(level, body, queue_id=self.number % QUEUES)
            row = batch.rows[0]
            if row["status"] == 0:
                due_ms = int(row["store_ms"] + delays[held])
                self.sent.append(
                    Sent(
                        self.number, held, due_ms, int(row["phys_offset"]), int(row["queue_offset"])
                    )
                )
            else:
                assert self.disk_full
                assert row["status"] == 14
            self.number += 1
        self.settle()

    @rule(step_ms=st.sampled_from([1, 400, 1_000, 5_000, 70_000, -300, -20_000]))
    def advance(self, step_ms: int) -> None:
        self.driver.do(lambda: self.rig.advance(step_ms))
        self.settle()

    def change_levels(self, text: str) -> None:
        self.properties["messageDelayLevel"] = text
        self.rig.plugin.reconfigure(self.properties)
        self.settle()

    def do_mode(self) -> None:
        now = self.properties["enableScheduleAsyncDeliver"]
        self.properties["enableScheduleAsyncDeliver"] = "false" if now == "true" else "true"
        self.rig.plugin.reconfigure(self.properties)
        self.settle()

    def do_persist(self) -> None:
        assert self.driver.do(self.rig.persist)
        self.tables.append((self.root / "config" / "delayOffset.json").read_bytes())

    def do_disk(self) -> None:
        if not self.disk_full:
            self.rig.store.gate.refusal = "the disk is full"
            self.disk_full = True
            return
        self.rig.store.gate.refusal = ""
        self.disk_full = False
        self.high_ms = self.clock.now_ms()
        self.driver.do(lambda: self.rig.advance(60_000))
        self.settle()

    def do_oldest(self) -> None:
        store = self.rig.store
        if self.disk_full or len(store.log.files) < 2:
            return
        store.log.detach_first().erase()
        store.queues.correct_min(store.min_offset)
        self.sent = [item for item in self.sent if item.phys_offset >= store.min_offset]
        self.settle()

    def do_restart(self) -> None:
        self.driver.stop()
        self.disk_full = False
        self.driver.start(self.properties)
        self.settle()

    @rule(
        cut=st.sampled_from([0, 1, 50, 400, 5_000, 40_000]),
        lost=st.sampled_from(["", "queue", "offsets", "older offsets", "mark"]),
    )
    def crash(self, cut: int, lost: str) -> None:
        store = self.rig.store
        end, durable = store.max_offset, store.durable_offset
        files = [(f.path, f.base, f.size) for f in store.log.files]
        self.rig.crash()
        self.driver.stop()
        self.boot += cut > 0  # only a power cut loses written data
        for path, base, size in files:
            first = max(max(end - cut, durable) - base, 0)
            last = min(end - base, size)
            if first < last:
                with path.open("r+b") as file:
                    file.seek(first)
                    file.write(bytes(last - first))
        self._lose(lost)
        self.disk_full = False
        self.driver.start(self.properties)
        end = self.driver.log_end
        self.sent = [item for item in self.sent if item.phys_offset < end]
        alive = {item.number for item in self.sent}
        self.got = [g for g in self.got if g.phys_offset < end and g.number in alive]
        for queue in self.read:
            self.read[queue] = min(self.read[queue], self.driver.ends[queue])
        self.settle()

    def _lose(self, what: str) -> None:
        config = self.root / "config"
        if what == "queue":
            shutil.rmtree(self.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX", ignore_errors=True)
            (config / "duemq.mark").unlink(missing_ok=True)
        elif what == "offsets":
            (config / "delayOffset.json").unlink(missing_ok=True)
            (config / "delayOffset.json.bak").unlink(missing_ok=True)
        elif what == "older offsets" and self.tables:
            (config / "delayOffset.json").write_bytes(self.tables[len(self.tables) // 2])
        elif what == "mark":
            (config / "duemq.mark").unlink(missing_ok=True)

    def settle(self) -> None:
        self.driver.do(self.rig.settle)
        if not self.disk_full:
            self.high_ms = self.clock.now_ms()
        for queue, offset in list(self.read.items()):
            first, end = self.rig.store.queue_bounds("T", queue)
            offset = max(offset, first)
            while offset < end:
                for unit in self.rig.store.units("T", queue, offset, 100):
                    record = self.rig.store.read_record(int(unit["phys_offset"]))
                    number = int(record.body.split(b".")[0])
                    self.got.append(Delivered(number, record.phys_offset, record.store_ms))
                    offset += 1
            self.read[queue] = offset

    @invariant()
    def deliveries_equal_the_model(self) -> None:
        if self.driver.rig is None:
            return
        got = {}
        for item in self.got:
            assert item.number not in got, f"message {item.number} was delivered twice"
            got[item.number] = item
        for message in self.sent:
            item = got.get(message.number)  # type: ignore[assignment]
            if item is not None:
                assert item.store_ms >= message.due_ms, "early"
            elif not self.disk_full:
                assert message.due_ms > self.high_ms, f"message {message.number} is missing"

    @invariant()
    def counts_equal_the_model(self) -> None:
        if self.driver.rig is None:
            return
        got = {item.number for item in self.got}
        rows = self.rig.plugin.admin_views()["levels"]()["levels"]
        view = {row["level"]: row for row in rows}
        for level in range(1, 5):
            waiting = [m for m in self.sent if m.level == level and m.number not in got]
            assert level in view or not waiting
            if level in view:
                assert view[level]["pending"] == len(waiting), f"level {level}"
            if waiting and not self.disk_full:
                assert view[level]["next_due_ms"] == min(m.due_ms for m in waiting)

    @invariant()
    def levels_are_in_order(self) -> None:
        places = {item.number: item.phys_offset for item in self.got}
        for level in range(1, 5):
            mine = [m for m in self.sent if m.level == level and m.number in places]
            for elder, younger in pairwise(mine):
                if elder.due_ms <= younger.due_ms:
                    assert places[elder.number] < places[younger.number]

    def teardown(self) -> None:
        if self.driver.rig is not None:
            self.driver.stop()
        self.driver.close()
        self.patch.undo()
        shutil.rmtree(self.root, ignore_errors=True)


TestLevels = LevelsMachine.TestCase
TestLevels.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture
def machine() -> Iterator[LevelsMachine]:
    """Return a started state machine, to be used without Hypothesis."""
    found = LevelsMachine()
    found.start(asynchronous=False, batch=1)
    try:
        yield found
    finally:
        found.teardown()


def check(machine: LevelsMachine) -> None:
    machine.deliveries_equal_the_model()
    machine.counts_equal_the_model()
    machine.levels_are_in_order()


def test_the_one_record_after_retention_is_torn(machine: LevelsMachine) -> None:
    machine.send_and_advance(count=18, level=1, size=10, step_ms=0)
    machine.send_and_advance(count=20, level=1, size=3_000, step_ms=0)
    machine.disturb(["oldest"])
    assert len(machine.sent) == 1
    for _ in range(2):
        machine.crash(cut=1, lost="")
        check(machine)
        bounds = machine.rig.store.queue_bounds("SCHEDULE_TOPIC_XXXX", 0)
        assert bounds == (37, 37)
    machine.send_and_advance(count=1, level=1, size=10, step_ms=5_000)
    check(machine)
    assert len(machine.got) == 1


def test_a_queue_and_the_mark_are_lost_after_a_clock_was_set_back(machine: LevelsMachine) -> None:
    machine.send_and_advance(count=1, level=1, size=10, step_ms=0)
    machine.disturb(["restart"])
    machine.send_and_advance(count=1, level=1, size=10, step_ms=-20_000)
    machine.send_and_advance(count=20, level=1, size=3_000, step_ms=5_000)
    machine.crash(cut=50, lost="queue")
    check(machine)
    assert len(machine.sent) == 22
