"""Steps of a simulation, one method each, and the checks of the idle broker."""

from __future__ import annotations

import random
import struct
from itertools import product
from typing import Any

from delayed_delivery.level_delays import parse_levels
from duemq.pull.pull_plan import PullRequest
from duemq_common.request import Request, Response
from message_store.log.record import decode_record
from tests.simulation.consumer import Consumer
from tests.simulation.rig import Rig
from tests.support.loopback_broker import pull_request
from tests.support.naive_model import (
    HOLD_MS,
    SCHEDULE,
    Fate,
    Message,
    Model,
    log_records,
    pending_of,
    timers_of,
)
from tests.support.remoting_requests import topic_fields
from tests.support.send_path import send_request

LEVELS = ("1s 5s 10s 30s", "1s 2s 3s", "10s 1s", "2s 5s 10s 30s 1m", "1s 5s 10s 30s")
COMMIT, ROLLBACK = 8, 12
GROUP = "%RETRY%readers"
CHANGING = "Changing"  # a topic that is deleted and created again


class Simulation:
    """Run of random steps, followed by a check of the idle broker."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self.rig, self.chance = rig, chance
        self.model = Model()
        self.consumer = Consumer(rig, chance)
        self.done: list[str] = []
        self._delays = parse_levels(LEVELS[0]).tolist()
        self._serial = 0
        self._deleted_at = 0  # log offset at the last deletion of CHANGING
        self._flying: dict[int, tuple[int, list[Message]]] = {}
        self._steps = {
            self.plain: 6,
            self.delayed: 14,
            self.timer: 14,
            self.burst: 4,
            self.batch: 3,
            self.transaction: 4,
            self.send_back: 4,
            self.forward: 14,
            self.step_back: 2,
            self.levels: 2,
            self.delete: 2,
            self.persist: 4,
            self.sync: 3,
            self.restart: 3,
            self.kill: 4,
            self.kill_while_delivering: 3,
            self.cut: 4,
            self.check: 6,
            self.consume: 12,
        }

    async def run(self, steps: int) -> None:
        """Take steps, then deliver everything and check."""
        await self.rig.start()
        await self.change_topic()
        for _ in range(steps):
            [step] = self.chance.choices(list(self._steps), list(self._steps.values()))
            self.done.append(step.__name__)
            await step()
        self.done.append("end")
        self.rig.gate.open.set()
        await self.rig.advance(1_000_000)
        await self.check()
        await self.rig.stop()

    # -- sending ----------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.rig.clock.now_ms()

    def _new(self, topic: str, level: int) -> Message:
        self._serial += 1
        level = min(level, len(self._delays) - 1)
        delay_ms = self._delays[level] if level > 0 else 0
        body = b"<%d %s>" % (self._serial, b"x" * self.chance.choice([0, 10, 900]))
        return self.model.add(Message(body, topic, level, self.now_ms + delay_ms, self._serial))

    def _request(self, message: Message, **changes: str) -> Request:
        properties = f"UNIQ_KEY\x01{message.number}\x02"
        if message.level:
            properties += f"DELAY\x01{message.level}\x02"
        code = self.chance.choice([10, 310])
        return send_request(
            code=code,
            body=message.body,
            topic=message.topic,
            queueId=str(self.chance.randrange(2)),
            properties=properties + changes.pop("properties", ""),
            **changes,
        )

    async def _send_later(self, request: Request, messages: list[Message]) -> None:
        number = self.rig.client.write(request)
        self._flying[number] = self.now_ms, messages
        if self.rig.gate.open.is_set() and self.chance.random() < 0.8:
            await self.rig.until(lambda: number in self.rig.client.responses)
        else:
            await self.rig.turn(self.chance.randrange(4))
        self.land()

    def land(self) -> None:
        """Record the responses that arrived."""
        for number in list(self._flying):
            response = self.rig.client.responses.pop(number, None)
            if response is not None:
                sent_ms, messages = self._flying.pop(number)
                for message in messages:
                    assert response.code == 0, response
                    message.taken(self.now_ms, sent_ms)

    def _topic(self) -> str:
        return self.chance.choice(["T", "T", "Other", CHANGING])

    async def plain(self) -> None:
        message = self._new(self._topic(), 0)
        await self._send_later(self._request(message), [message])

    async def delayed(self) -> None:
        message = self._new(self._topic(), self.chance.randint(1, 6))
        await self._send_later(self._request(message), [message])

    async def timer(self) -> None:
        """Send a timer with any due time, possibly far beyond the roll window."""
        message = self._new(self.chance.choice(["T", "Other"]), 0)
        delay_ms = self.chance.choice([1, 500, 1_000, 2_001, 30_000, 400_000])
        message.due_ms = self.now_ms + delay_ms
        text = self.chance.choice(
            [f"TIMER_DELAY_MS\x01{delay_ms}\x02", f"TIMER_DELIVER_MS\x01{message.due_ms}\x02"]
        )
        await self._send_later(self._request(message, properties=text), [message])

    async def burst(self) -> None:
        for _ in range(self.chance.choice([10, 100])):
            message = self._new(self._topic(), self.chance.choice([0, 1, 1, 2]))
            self._flying[self.rig.client.write(self._request(message))] = self.now_ms, [message]
        await self.rig.turn(self.chance.randrange(6))
        self.land()

    async def batch(self) -> None:
        messages = [self._new("T", 0) for _ in range(self.chance.randint(1, 20))]
        parts = []
        for message in messages:
            head = struct.pack("!iiiii", 22 + len(message.body), 0, 0, 0, len(message.body))
            parts.append(head + message.body + b"\0\0")
        request = send_request(code=320, topic="T", body=b"".join(parts), queueId="0")
        await self._send_later(request, messages)

    async def transaction(self) -> None:
        """Send a half message, then commit it, roll it back, or leave it unresolved."""
        if not self.rig.gate.open.is_set():
            return
        message = self._new("T", self.chance.choice([0, 1, 2]))
        message.fate = Fate.NEVER
        half = self._request(message, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02", sysFlag="4")
        stored = await self.rig.call(half)
        assert stored.code == 0
        verdict = self.chance.choice([COMMIT, COMMIT, ROLLBACK, 0])
        if verdict:
            await self._end_transaction(message, stored, verdict)

    async def _end_transaction(self, message: Message, stored: Response, verdict: int) -> None:
        assert stored.fields is not None
        fields = {
            "producerGroup": "p",
            "tranStateTableOffset": stored.fields["queueOffset"],
            "commitLogOffset": str(int(stored.fields["msgId"][16:], 16)),
            "commitOrRollback": str(verdict),
            "fromTransactionCheck": "false",
            "msgId": str(message.number),
        }
        if verdict == COMMIT:
            delay_ms = self._delays[message.level] if message.level else 0
            message.due_ms = self.now_ms + delay_ms
            self._serial += 1
            message.number = self._serial
            message.fate = Fate.UNKNOWN
            await self._send_later(Request(37, fields), [message])
            message.is_overtaken = message.fate is Fate.UNKNOWN
        else:
            assert (await self.rig.call(Request(37, fields))).code == 0

    async def send_back(self) -> None:
        """Pull a message and send it back; it must be delivered in the retry topic."""
        if not self.rig.gate.open.is_set():
            return
        offset = self.chance.randrange(50)
        pulled = await self.rig.call(pull_request("T", 0, offset, maxMsgNums="1"))
        if pulled.code != 0:
            return
        record = decode_record(memoryview(bytes(pulled.body)), 0)
        level = self.chance.randint(1, 3)
        key = (GROUP, record.body)
        if key in self.model.messages:
            return
        self._serial += 1
        at = min(level, len(self._delays) - 1)
        due_ms = self.now_ms + self._delays[at]
        message = self.model.add(Message(record.body, GROUP, at, due_ms, self._serial))
        fields = {
            "group": "readers",
            "offset": str(record.phys_offset),
            "delayLevel": str(level),
            "originMsgId": "x",
            "originTopic": "T",
            "unitMode": "false",
        }
        await self._send_later(Request(36, fields), [message])

    async def consume(self) -> None:
        """Pull with a connected consumer, whether or not the disk syncs."""
        await self.consumer.consume()

    # -- time and settings -----------------------------------------------------------------------

    async def forward(self) -> None:
        step_ms = self.chance.choice([1, 300, 999, 1_000, 2_500, 10_000, 60_000])
        if self.rig.gate.open.is_set():
            await self.rig.advance(step_ms)
        else:
            self.rig.clock.advance(step_ms)
            await self.rig.turn(self.chance.randrange(10))
        self.land()

    async def step_back(self) -> None:
        """Set the clock back while no request is in flight."""
        await self.open_disk()
        await self.rig.advance(-self.chance.choice([1, 500, 20_000]))

    async def levels(self) -> None:
        if self.rig.gate.open.is_set():
            text = self.chance.choice(LEVELS)
            await self._land_all()
            body = f"messageDelayLevel={text}\n".encode()
            assert (await self.rig.call(Request(25, {}, body))).code == 0
            self.rig.properties["messageDelayLevel"] = text
            self._delays = parse_levels(text).tolist()

    async def delete(self) -> None:
        """Delete a topic that a later send recreates."""
        await self.open_disk()
        response = await self.rig.call(Request(215, {"topic": CHANGING}))
        assert response.code == 0
        self._deleted_at = self.rig.broker.store.max_offset
        if self.chance.random() < 0.5:
            await self.change_topic()

    async def change_topic(self) -> None:
        fields = topic_fields(CHANGING, 2)
        assert (await self.rig.call(Request(17, fields))).code == 0

    async def persist(self) -> None:
        if self.rig.gate.open.is_set():
            assert await self.rig.persist()

    # -- disk and restarts -------------------------------------------------------------------------

    async def sync(self) -> None:
        """Suspend syncs for some time; with SYNC_FLUSH, no message is acknowledged meanwhile."""
        if self.rig.gate.open.is_set():
            self.rig.gate.open.clear()
        else:
            await self.open_disk()

    async def open_disk(self) -> None:
        self.rig.gate.open.set()
        await self._land_all()
        await self.rig.rest()

    async def _land_all(self) -> None:
        responses = self.rig.client.responses
        await self.rig.until(lambda: all(number in responses for number in self._flying))
        self.land()

    async def restart(self) -> None:
        await self.open_disk()
        await self.rig.stop()
        await self.begin()

    async def kill(self) -> None:
        self.land()
        await self.rig.die(cut=False)
        await self.begin()

    async def kill_while_delivering(self) -> None:
        """Kill the broker while overdue messages are delivered."""
        self.rig.clock.advance(40_000)
        await self.rig.turn(self.chance.randrange(12))
        await self.kill()

    async def cut(self) -> None:
        """Cut the power; acknowledged messages survive only with SYNC_FLUSH."""
        if self.rig.properties["flushDiskType"] != "SYNC_FLUSH":
            return await self.kill()
        self.land()
        await self.rig.die(cut=True)
        await self.begin()
        return None

    async def begin(self) -> None:
        """Restart the broker; the results of requests in flight are unknown."""
        self._flying.clear()
        await self.rig.start()
        await self.consumer.check_committed()
        if self.chance.random() < 0.5:
            await self.consumer.consume()
        await self.rig.rest()

    # -- checks -----------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check all messages of the idle broker."""
        await self.open_disk()
        await self.rig.advance(0)
        store = self.rig.broker.store
        records = log_records(store)
        assert self.model.faults(records, self.now_ms) == []
        view = self.rig.broker.plugins.admin_views()["schedule_service.levels"]()
        counts = {row["level"]: row["pending"] for row in view["levels"] if row["pending"]}
        assert counts == dict(pending_of(records, self._schedule_units()))
        assert view["pending"] == sum(counts.values())
        assert self.rig.timers.counts.total == timers_of(records)
        await self.rig.confirmed()
        await self._check_pulls(records)
        await self.consumer.check_all(records)

    def _schedule_units(self) -> set[int]:
        store, found = self.rig.broker.store, set()
        for queue_id in range(18):
            offset, end = store.queue_bounds(SCHEDULE, queue_id)
            while offset < end:
                units = store.units(SCHEDULE, queue_id, offset, 10_000)
                assert units.size, f"schedule queue {queue_id} has no unit {offset} of {end}"
                found |= set(units["phys_offset"].tolist())
                offset += int(units.size)
        return found

    async def _check_pulls(self, records: list[Any]) -> None:
        """Check that pulls return the messages of the log in order."""
        topics = {"T": 0, "Other": 0, CHANGING: self._deleted_at}
        for topic, queue_id in product(topics, (0, 1)):
            if self.rig.broker.parts.topics.find(topic) is not None:
                mine = [r for r in records if (r.topic, r.queue_id) == (topic, queue_id)]
                here = [r.body for r in mine if r.phys_offset >= topics[topic]]
                assert await self._pull_all(topic, queue_id) == here

    async def _pull_all(self, topic: str, queue_id: int) -> list[bytes]:
        found: list[bytes] = []
        offset = 0
        while True:
            response = await self.rig.call(pull_request(topic, queue_id, offset))
            if response.code == 19:
                return found
            assert response.code in (0, 20), response
            assert int((response.fields or {})["nextBeginOffset"]) > offset, response
            assert response.fields is not None
            offset = int(response.fields["nextBeginOffset"])
            view = memoryview(bytes(response.body))
            while view:
                size = int.from_bytes(view[:4], "big")
                found.append(decode_record(view[:size], 0, check_crc=True).body)
                view = view[size:]


__all__ = ["HOLD_MS", "PullRequest", "Simulation"]
