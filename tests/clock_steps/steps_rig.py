"""Complete broker whose wall clock is stepped, and the guarantees by each clock.

Due times refer to the wall clock: no message is readable before its due time. Leases, long polls
and lateness are measured by elapsed time.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from duemq_common.request import Request
from tests.simulation.rig import Gate, Rig
from tests.support.loopback_broker import TOPICS, faults_of, pull_request
from tests.support.send_path import send_request
from tests.support.stores import records_of

PROPERTIES = {
    "flushDiskType": "SYNC_FLUSH",
    "syncFlushTimeout": "600000",
    "messageDelayLevel": "1s 5s 10s 30s",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "timerRollWindowSlot": "20",
    "mappedFileSizeTimerLog": "2600",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "2000",
    "transactionCheckMax": "1000",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
}
LEVELS_MS = (0, 1_000, 5_000, 10_000, 30_000)
TIMERS_MS = (700, 4_000, 33_000)
TICK_MS = 1_000
LATE_MS_MAX = 2 * TICK_MS  # arrivals are checked once per tick
HOLD_MS, LOCK_MS = 15_000, 60_000
CHECK_MS = 4 * TICK_MS
CHECK_TRANSACTION, HEARTBEAT, LOCK, PULL_NOT_FOUND = 39, 34, 41, 19
TRANSACTION_PREPARED = "4"


@dataclass(slots=True)
class Sent:
    """Acknowledged message.

    Attributes:
        reached_ms: Elapsed time at which the wall clock reached the due time.
    """

    due_ms: int
    reached_ms: int | None = None


@dataclass(slots=True)
class Report:
    """Result of one run.

    Attributes:
        late_ms: Maximum lateness of a message, in ms of elapsed time.
    """

    problems: list[str] = field(default_factory=list)
    sent: int = 0
    late_ms: int = 0


class StepsRig:
    """Broker across restarts."""

    def __init__(self, home: Path) -> None:
        self.rig = Rig(home, Gate(pytest.MonkeyPatch()), Random(1), PROPERTIES)
        self.report = Report()
        self.pending: dict[str, Sent] = {}
        self.arrived = Counter[str]()
        self._dues: dict[str, int] = {}
        self._read: dict[tuple[str, int], int] = {}
        self._latest_ms = 0  # latest wall-clock time since the last check of arrivals
        self._serial = 0
        self.checks = 0

    @property
    def clock(self) -> Any:
        return self.rig.clock

    def problem(self, text: str) -> None:
        self.report.problems.append(text)

    # -- starts and ends --------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker, and connect the producer of transactions."""
        await self.rig.start()
        await self.rig.broker.parts.topics.ensure("Held", queues=1)
        self.rig.client.read = self._read_responses
        beat = {
            "clientID": "producer",
            "producerDataSet": [{"groupName": "P"}],
            "consumerDataSet": [],
        }
        await self.rig.call(Request(HEARTBEAT, {}, json.dumps(beat).encode()))

    def _read_responses(self) -> None:
        """Read responses, by request number, and checks of transactions."""
        client = self.rig.client
        for header, body in client.wire.take():
            if header["code"] == CHECK_TRANSACTION and not header.get("flag", 0) & 1:
                self.checks += 1
                continue
            client.responses[header["opaque"]] = _response(header, body)

    async def end(self, how: str) -> None:
        """Stop, kill, or cut the power."""
        if how == "stopped":
            await self.rig.stop()
        else:
            await self.rig.die(cut=how == "cut")

    # -- time -------------------------------------------------------------------------------------

    async def step(self, step_ms: int) -> None:
        """Step the wall clock without elapsed time."""
        self.clock.step(step_ms)
        self._note_time()
        if self.rig.broker is not None:
            await self.settle()

    async def tick(self, step_ms: int = TICK_MS) -> None:
        """Advance both clocks, and record arrivals."""
        self.clock.advance(step_ms)
        self._note_time()
        await self.settle()

    async def settle(self) -> None:
        """Run the event loop until there is no more work at this time."""
        await self.rig.rest()
        await self.rig.confirmed()
        self._take_arrivals()

    def _note_time(self) -> None:
        now_ms, steady_ms = self.clock.now_ms(), self.clock.steady_ms()
        self._latest_ms = max(self._latest_ms, now_ms)
        for sent in self.pending.values():
            if now_ms < sent.due_ms:
                sent.reached_ms = None
            elif sent.reached_ms is None:
                sent.reached_ms = steady_ms

    def _take_arrivals(self) -> None:
        store, now_ms = self.rig.broker.store, self.clock.now_ms()
        for topic in TOPICS:
            for queue_id in (0, 1):
                known = self._read.get((topic, queue_id), 0)
                for record in records_of(store, topic, queue_id):
                    if record.queue_offset >= known:  # retention removes older ones
                        self._take(record.body.decode(), record.store_ms)
                        self._read[topic, queue_id] = record.queue_offset + 1
        self._latest_ms = now_ms

    def _take(self, body: str, store_ms: int) -> None:
        self.arrived[body] += 1
        due_ms = self._dues.get(body)
        if due_ms is not None and (store_ms < due_ms or self._latest_ms < due_ms):
            self.problem(f"{body} is early: stored at {store_ms}, due at {due_ms}")
        sent = self.pending.pop(body, None)
        if sent is not None and sent.reached_ms is not None:
            late_ms = self.clock.steady_ms() - sent.reached_ms
            self.report.late_ms = max(self.report.late_ms, late_ms)

    # -- work -------------------------------------------------------------------------------------

    async def send_mix(self) -> None:
        """Send a plain message, one of each level, and timers."""
        for level in range(len(LEVELS_MS)):
            await self._send(LEVELS_MS[level], f"DELAY\x01{level}\x02" if level else "")
        for delay_ms in TIMERS_MS:
            due_ms = self.clock.now_ms() + delay_ms
            await self._send(delay_ms, f"TIMER_DELIVER_MS\x01{due_ms}\x02")

    async def send_few(self) -> None:
        """Send one level message and one timer."""
        await self._send(LEVELS_MS[1], "DELAY\x011\x02")
        due_ms = self.clock.now_ms() + TIMERS_MS[1]
        await self._send(TIMERS_MS[1], f"TIMER_DELIVER_MS\x01{due_ms}\x02")

    async def _send(self, delay_ms: int, properties: str) -> None:
        self._serial += 1
        body = f"m{self._serial}"
        now_ms = self.clock.now_ms()
        request = send_request(
            body=body.encode(),
            topic=TOPICS[self._serial % 2],
            properties=f"UNIQ_KEY\x01U{self._serial}\x02{properties}",
        )
        response = await self.rig.call(request)
        if response.code:
            self.problem(f"a send was refused: {response.code} {response.remark}")
            return
        self.report.sent += 1
        self._dues[body] = now_ms + delay_ms
        if body not in self.arrived:
            self.pending[body] = Sent(now_ms + delay_ms)
        self._note_time()

    async def send_half(self) -> None:
        """Send a half message whose producer never ends the transaction."""
        self._serial += 1
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01H{self._serial}\x02"
        request = send_request(body=b"half", properties=properties, sysFlag=TRANSACTION_PREPARED)
        response = await self.rig.call(request)
        if response.code:
            self.problem(f"a half message was refused: {response.code} {response.remark}")

    def hold_pull(self) -> int:
        """Start a pull at the end of a queue, which the broker holds; return its number."""
        fields = {"sysFlag": "6", "suspendTimeoutMillis": str(HOLD_MS), "consumerGroup": "holders"}
        return int(self.rig.client.write(pull_request("Held", 0, 0, **fields)))

    async def lock(self, client_id: str) -> bool:
        """Try to lock a queue; return whether the client has it now."""
        queue = {"brokerName": "B", "queueId": 0, "topic": "T"}
        body = {"clientId": client_id, "consumerGroup": "orderly", "mqSet": [queue]}
        response = await self.rig.call(Request(LOCK, {}, json.dumps(body).encode()))
        return bool(json.loads(bytes(response.body)).get("lockOKMQSet"))

    async def run_jobs(self) -> None:
        """Run every periodic job once, including retention."""
        for job in list(self.rig.broker.scheduler.get_jobs()):
            found = job.func(*job.args, **job.kwargs)
            if asyncio.iscoroutine(found):
                await found

    def check_end(self) -> None:
        """Check that every message arrived once, and that the store has no faults."""
        for body in self.pending:
            self.problem(f"{body} is stuck: due at {self._dues[body]}, now {self.clock.now_ms()}")
        doubled = sorted(body for body, count in self.arrived.items() if count > 1)
        if doubled:
            self.problem(f"delivered twice: {doubled[:5]}")
        if self.report.late_ms > LATE_MS_MAX:
            self.problem(f"a message was {self.report.late_ms} ms late")
        self.report.problems += [f"verify: {fault}" for fault in faults_of(self.rig.root)[:3]]


def _response(header: dict[str, Any], body: Any) -> Any:
    from duemq_common.request import Response

    return Response(header["code"], header.get("remark"), header.get("extFields") or {}, body)
