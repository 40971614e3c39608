"""Workload of a complete broker on a failing disk, and checks after the next start.

The broker is started several times. A `STRICT` run ends it by a stop, by a power cut that leaves
half a record at the end of the log, and by another stop; no message may be lost. In an `AGED` run
the last period is longer than the retention time, so that files with delivered messages are
removed. The workload writes every kind of file: commit log, queues, index, timer log and wheel,
checkpoints, tables, offsets. It uses a fake clock and SYNC_FLUSH. After the disk has recovered and
the broker was restarted, each acknowledged message must be delivered exactly once, and delayed
messages not before their time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from duemq_common.errors import DueMQError
from duemq_common.request import Request
from tests.simulation.rig import Gate, Rig
from tests.storage_faults.injector import Injector
from tests.support.loopback_broker import TOPICS, faults_of, pull_request, records_of
from tests.support.send_path import send_request

PROPERTIES = {
    "flushDiskType": "SYNC_FLUSH",
    "messageDelayLevel": "1s 5s 10s 30s",
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "1000",
    "timerPrecisionMs": "100",
    "timerRollWindowSlot": "60",
    "mappedFileSizeTimerLog": "2600",
    "timerFlushIntervalMs": "1000",
    "syncFlushTimeout": "60000",
    "flushConsumerOffsetInterval": "1000000",
    "flushDelayOffsetInterval": "1000000",
    "maxIndexNum": "60",
    "maxHashSlotNum": "20",
    "deleteWhen": "00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
    "embeddedNamesrvEnable": "true",
    "embeddedNamesrvPort": "0",
}
OK = 0
ANSWER_S = 3.0  # timeout of a request
ROUNDS = 5
FAR_MS = 500_000
TAGS = ("A", "C", "B")  # the codes of A and C, and those of C and B, differ in one bit
RETENTION_MS = 100 * 3_600_000
Endings = tuple[str, ...]
STRICT: Endings = ("stop", "cut", "stop")
AGED: Endings = ("stop", "age")
GIVEN_UP = (DueMQError, OSError)


@dataclass
class Message:
    """Acknowledged message."""

    body: str
    topic: str
    due_ms: int
    may_be_removed: bool = False


@dataclass
class Report:
    """Result of a run.

    Attributes:
        outcome: `absorbed`, `refused`, `stopped`, or `start refused`.
        fired: Number of injected errors.
        problems: Violations of the delivery guarantees; empty: none.
    """

    outcome: str = "absorbed"
    fired: int = 0
    refused: int = 0
    acknowledged: list[Message] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data without the messages."""
        found = asdict(self)
        found["acknowledged"] = len(self.acknowledged)
        return found


class Workload:
    """Workload of a broker on one directory.

    Args:
        endings: Kind of end of each period between a start and its end.
        rounds: Number of rounds of work in each period, of one second each.
        answer_s: Timeout of a request, in seconds.
    """

    def __init__(
        self,
        home: Path,
        injector: Injector,
        endings: Endings = STRICT,
        *,
        properties: dict[str, str] = PROPERTIES,
        rounds: int = ROUNDS,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.rig = Rig(home, Gate(self.patch), Random(1), properties)
        self.injector, self.endings, self.rounds = injector, endings, rounds
        self.report = Report()
        self._serial, self._answer_s = 0, answer_s

    async def run(self) -> Report:
        """Run the workload with the fault, then restart without it and check."""
        await self._with_fault()
        self.injector.armed = False
        self.report.fired = self.injector.fired
        try:
            await self._without_fault()
        except Exception as error:  # any error counts as a problem
            self.report.problems.append(f"after the fault: {_text(error)}")
        return self.report

    async def live_once(self, *, killed: bool = False) -> None:
        """Start, work and stop; `killed`: keep the files of the running broker."""
        if await self._start():
            await self._work("stop")
            store = self.rig.broker.store
            await self.rig.until(
                lambda: store.log.sums.has_changed(store.max_offset - 1, 1) is False
            )
            await (self.rig.die(cut=False) if killed else self._end(cut=False))

    async def _with_fault(self) -> None:
        for number, ending in enumerate(self.endings):
            if not await self._start():
                return
            try:
                await self._work(f"{ending}{number}")
                if ending == "age":
                    await self._age()
            except _NoAnswer as error:
                self.report.refused += 1
                self.report.detail = str(error)
            await self._end(cut=ending == "cut")

    async def _start(self) -> bool:
        try:
            await self.rig.start()
        except BaseException as error:
            self._ended("start refused", error)
            with contextlib.suppress(Exception):  # it may have failed after the start
                await self.rig.broker.__aexit__(None, None, None)
            return False
        return True

    async def _end(self, *, cut: bool) -> None:
        if self.rig.broker.failure or self.rig.broker.store.refusal:
            self.report.outcome = "stopped"
            self.report.detail = self.rig.broker.failure or self.rig.broker.store.refusal
        try:
            async with asyncio.timeout(self._answer_s * 3):
                if cut:
                    end = self.rig.broker.store.max_offset
                    await self.rig.die(cut=True)
                    self._tear_log(end)
                else:
                    await self.rig.stop()
        except BaseException as error:
            self._ended("stopped", error)

    def _tear_log(self, end: int) -> None:
        """Append half a record to the end of the log."""
        path = max((self.rig.root / "commitlog").iterdir())
        pos = min(end - int(path.name) + 400, path.stat().st_size - 64)
        if pos >= end - int(path.name):  # else the file is full
            with path.open("r+b") as file:
                file.seek(pos)
                file.write(b"torn" * 16)

    def _ended(self, outcome: str, error: BaseException) -> None:
        self.report.outcome = outcome
        self.report.detail = _text(error)
        for each in _leaves(error):
            if not isinstance(each, GIVEN_UP):
                trace = "".join(traceback.format_exception(each)[-3:])
                self.report.problems.append(f"{outcome}: {_text(each)}\n{trace}")

    # -- work -------------------------------------------------------------------------------------

    async def _age(self) -> None:
        """Advance the clock by the retention time, and run retention."""
        for message in self.report.acknowledged:
            message.may_be_removed = True
        now_s = self.rig.clock.now_ms() / 1_000
        for path in (self.rig.root / "commitlog").iterdir():
            os.utime(path, (now_s, now_s))  # retention compares it with the clock
        for step_ms in (60_000, RETENTION_MS):
            await self._advance(step_ms)
        for _ in range(2):  # first checkpoints, then the removal of files before them
            await self._keep()
        await self._send()

    async def _work(self, ending: str) -> None:
        for number in range(self.rounds):
            for level in (0, 1, 3):
                await self._send(level=level)
            await self._send(timer_ms=700 + 900 * number)
            await self._send(timer_ms=15_000)
            await self._pull("T")
            await self._advance(1_000)
            if number == self.rounds // 2:
                await self._keep()
        for number in range(3):
            await self._change_topic(f"Made-{ending}-{number}")
        await self._keep()

    async def _send(self, *, level: int = 0, timer_ms: int = 0) -> None:
        self._serial += 1
        body, now_ms = f"m{self._serial} " + "x" * 300, self.rig.clock.now_ms()
        properties = f"UNIQ_KEY\x01U{self._serial}\x02KEYS\x01k{self._serial}\x02"
        properties += f"TAGS\x01{TAGS[self._serial // 2 % len(TAGS)]}\x02"
        due_ms = now_ms
        if level:
            properties += f"DELAY\x01{level}\x02"
            due_ms += (0, 1_000, 5_000, 10_000, 30_000)[level]
        if timer_ms:
            due_ms += timer_ms
            properties += f"TIMER_DELIVER_MS\x01{due_ms}\x02"
        topic = TOPICS[self._serial % 2]
        request = send_request(body=body.encode(), topic=topic, properties=properties)
        response = await self._call(request)
        if response.code == OK:
            self.report.acknowledged.append(Message(body, topic, due_ms))
        else:
            self.report.refused += 1
            if self.report.outcome == "absorbed":
                self.report.outcome, self.report.detail = "refused", f"{response.remark}"

    async def _pull(self, topic: str) -> None:
        changes = {"sysFlag": "5", "commitOffset": str(self._serial % 3)}
        await self._call(pull_request(topic, 1, 0, consumerGroup="readers", **changes))

    async def _change_topic(self, topic: str) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "2",
            "writeQueueNums": "2",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        await self._call(Request(17, fields))
        await self._call(send_request(topic=topic, queueId="1"))
        await self._call(Request(215, {"topic": topic}))

    async def _keep(self) -> None:
        """Write all offsets and tables."""
        broker = self.rig.broker
        for job in list(broker.scheduler.get_jobs()):
            try:
                found = job.func(*job.args, **job.kwargs)
                if asyncio.iscoroutine(found):
                    await found
            except GIVEN_UP as error:
                self.report.detail = _text(error)
        try:
            await self.rig.persist()
        except GIVEN_UP as error:
            self.report.detail = _text(error)

    async def _advance(self, step_ms: int) -> None:
        clock = self.rig.clock
        clock.set_ms(clock.now_ms() + step_ms)
        for _ in range(60):
            await asyncio.sleep(0)
        self.rig.client.read()

    async def _call(self, request: Request) -> Any:
        client = self.rig.client
        number = client.write(request)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._answer_s
        while loop.time() < end_s:
            for _ in range(16):
                await asyncio.sleep(0)
            client.read()
            if number in client.responses:
                return client.responses.pop(number)
            if client.connection.closed:
                break
            await asyncio.sleep(0.0005)
        raise _NoAnswer(f"no answer to request {request.code}")

    # -- the next start ---------------------------------------------------------------------------

    async def _without_fault(self) -> None:
        self.rig.clock.set_ms(self.rig.clock.now_ms() + 1_000)
        await self.rig.start()
        for _ in range(3):
            await self.rig.advance(FAR_MS)
        broker, problems = self.rig.broker, self.report.problems
        delivered = Counter[tuple[str, str]]()
        for topic in TOPICS:
            for queue_id in (0, 1):
                for record in records_of(broker, topic, queue_id):
                    body = record.body.decode()
                    delivered[topic, body] += 1
                    due_ms = self._due_ms.get(body, 0)
                    if record.store_ms < due_ms:
                        early_ms = due_ms - record.store_ms
                        problems.append(f"{body[:8]} was delivered {early_ms} ms early")
        for message in self.report.acknowledged:
            count = delivered[message.topic, message.body]
            if count != 1 and not (count == 0 and message.may_be_removed):
                problems.append(f"{message.body[:8]} was delivered {count} times")
        for (_, body), count in delivered.items():
            if count > 1 and body not in self._due_ms:
                problems.append(f"{body[:8]}, not acknowledged, was delivered {count} times")
        await self.rig.stop()
        problems += [f"verify: {fault}" for fault in faults_of(self.rig.root)][:5]

    @property
    def _due_ms(self) -> dict[str, int]:
        return {message.body: message.due_ms for message in self.report.acknowledged}


class _NoAnswer(Exception):
    """Request without a response in time."""


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
