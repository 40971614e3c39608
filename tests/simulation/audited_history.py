"""Random history of a broker that records what it expects of each message, and audits the store.

The history knows the state of each delayed message from its own commands and the responses. An
audit of the store, running, killed or stopped, must have the same state for each of them, and no
finding about any other record; an incremental audit must equal the full one.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any, Final

from delayed_delivery.level_delays import parse_levels
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from message_store.log.record import decode_record
from spark_reconciliation.local.frame import LocalSession
from tests.simulation.expected_verdicts import CHANGING, Expected, State, StoreAudits
from tests.simulation.rig import Rig
from tests.support.loopback_broker import pull_request
from tests.support.pop_client import Popped, popped
from tests.support.remoting_requests import topic_fields
from tests.support.send_path import send_request
from timer_store.compaction.compactor import PAUSE_MS

LEVELS: Final = ("1s 5s 10s 30s", "1s 2s 3s", "10s 1s", "2s 5s 10s 30s 1m")
TIMERS_MS: Final = (1, 500, 1_000, 2_001, 30_000, 400_000)
FORWARD_MS: Final = (1, 300, 999, 2_500, 10_000, 60_000)
OVERDUE_MS: Final = 40_000
READERS: Final = "readers"
RETRY: Final = f"%RETRY%{READERS}"
COMMIT, ROLLBACK = "8", "12"
AUDITED_SHARE: Final = 0.3
BEFORE_STEP, AFTER_STEP = 4, 20  # records by which an audit recognizes a clock step
STEP_TURNS: Final = 200  # turns of the event loop before the clock moves
TURNS_MAX: Final = 1_000


class AuditedHistory:
    """Random steps of a broker, each with a record of its effects.

    Attributes:
        done: Names of the steps that were taken.
        messages: Delayed messages, by topic and unique id.
    """

    def __init__(self, rig: Rig, chance: random.Random, session: LocalSession, home: Path) -> None:
        self.rig, self.chance = rig, chance
        self.done: list[str] = []
        self.messages: dict[tuple[str, str], Expected] = {}
        self._delays = parse_levels(LEVELS[0]).tolist()
        self._serial = 0
        self._exists = True  # whether CHANGING exists
        self._audits = StoreAudits(session, home)
        self._popped: list[Popped] = []
        self._steps = {
            self.plain: 4,
            self.level: 14,
            self.timer: 14,
            self.transaction: 5,
            self.send_back: 5,
            self.pop: 5,
            self.acknowledge: 4,
            self.cancel: 5,
            self.move: 6,
            self.fire: 5,
            self.schedule: 2,
            self.migrate: 5,
            self.compact: 2,
            self.remove: 2,
            self.forward: 14,
            self.step_back: 2,
            self.levels: 2,
            self.change_topic: 3,
            self.persist: 4,
            self.restart: 2,
            self.kill: 3,
            self.kill_while_delivering: 2,
            self.audit: 1,
        }

    async def run(self, steps: int) -> None:
        """Take steps, deliver everything, and audit the stopped store."""
        await self.rig.start()
        await self._create_topic()
        await self.plain()  # without a record there is no store
        for _ in range(steps):
            [step] = self.chance.choices(list(self._steps), list(self._steps.values()))
            self.done.append(step.__name__)
            await step()
        self.done.append("end")
        await self.audit()
        while any(one.state is State.PENDING for one in self.messages.values()):
            await self._advance(max(FORWARD_MS))
        await self.rig.stop()
        self._audit()

    # -- sends ------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.rig.clock.now_ms()

    async def _call(self, request: Request) -> Response:
        response = await self.rig.call(request)
        assert response.code == 0, response
        return response

    def _topic(self) -> str:
        return self.chance.choice(["T", "Other", CHANGING] if self._exists else ["T", "Other"])

    async def _send(self, topic: str, unique: str, properties: str, **changes: str) -> Response:
        request = send_request(
            code=self.chance.choice([10, 310]),
            body=b"x" * self.chance.choice([1, 10, 900]),
            topic=topic,
            queueId=str(self.chance.randrange(2)),
            properties=f"UNIQ_KEY\x01{unique}\x02" + properties,
            **changes,
        )
        return await self._call(request)

    def _unique(self) -> str:
        self._serial += 1
        return f"{self._serial:08X}"

    def _expect(self, topic: str, unique: str, due_ms: int) -> None:
        self.messages[topic, unique] = Expected(topic, due_ms, due_ms)

    def _level(self) -> tuple[int, int]:
        """Return a level and its delay."""
        level = self.chance.randint(1, 6)
        return level, self._delays[min(level, len(self._delays) - 1)]

    async def plain(self) -> None:
        await self._send(self._topic(), self._unique(), "")

    async def level(self) -> None:
        topic, unique, (level, delay_ms) = self._topic(), self._unique(), self._level()
        await self._send(topic, unique, f"DELAY\x01{level}\x02")
        self._expect(topic, unique, self.now_ms + delay_ms)

    async def timer(self) -> None:
        topic, unique = self._topic(), self._unique()
        due_ms = self.now_ms + self.chance.choice(TIMERS_MS)
        await self._send(topic, unique, f"TIMER_DELIVER_MS\x01{due_ms}\x02")
        self._expect(topic, unique, due_ms)

    async def transaction(self) -> None:
        """Send a half message, and commit it, roll it back, or leave it unresolved."""
        unique, (level, delay_ms) = self._unique(), self._level()
        timer_ms = self.chance.choice(TIMERS_MS)
        kind = self.chance.choice(["plain", "level", "timer"])
        delays = {"plain": "", "level": f"DELAY\x01{level}\x02"}
        delay = delays.get(kind, f"TIMER_DELAY_MS\x01{timer_ms}\x02")
        text = f"TRAN_MSG\x01true\x02PGROUP\x01p\x02{delay}"
        half = await self._send("T", unique, text, sysFlag="4")
        assert half.fields is not None
        if self.chance.random() < 0.3:
            await self.forward()
        verdict = self.chance.choice([COMMIT, COMMIT, ROLLBACK, ""])
        if not verdict:
            return
        fields = {
            "producerGroup": "p",
            "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": str(int(half.fields["msgId"][16:], 16)),
            "commitOrRollback": verdict,
            "fromTransactionCheck": "false",
            "msgId": unique,
        }
        await self._call(Request(RequestCode.END_TRANSACTION, fields))
        if verdict == COMMIT and kind != "plain":
            self._expect("T", unique, self.now_ms + (delay_ms if kind == "level" else timer_ms))

    async def send_back(self) -> None:
        """Pull a message and send it back."""
        pulled = await self.rig.call(
            pull_request("T", 0, self.chance.randrange(20), maxMsgNums="1")
        )
        if pulled.code != 0:
            return
        record = decode_record(memoryview(bytes(pulled.body)), 0)
        level, delay_ms = self._level()
        fields = {
            "group": READERS,
            "offset": str(record.phys_offset),
            "delayLevel": str(level),
            "originMsgId": "x",
            "originTopic": "T",
            "unitMode": "false",
        }
        unique = record.properties["UNIQ_KEY"]
        if (RETRY, unique) not in self.messages:
            await self._call(Request(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
            self._expect(RETRY, unique, self.now_ms + delay_ms)

    # -- pops -------------------------------------------------------------------------------------

    async def pop(self) -> None:
        fields = {
            "consumerGroup": "poppers",
            "topic": self.chance.choice(["T", "Other"]),
            "queueId": "-1",
            "pollTime": "0",
            "maxMsgNums": str(self.chance.choice([1, 4, 32])),
            "initMode": "0",
            "bornTime": str(self.now_ms),
            "invisibleTime": str(self.chance.choice([300, 2_000, 60_000])),
        }
        response = await self.rig.call(Request(RequestCode.POP_MESSAGE, fields, version=479))
        if response.code == 0:
            self._popped += popped(response, fields["topic"])

    async def acknowledge(self) -> None:
        """Acknowledge a popped message, in time or not."""
        if not self._popped:
            return
        message = self._popped.pop(self.chance.randrange(len(self._popped)))
        fields = {
            "consumerGroup": "poppers",
            "topic": message.real_topic.replace("%RETRY%g", "%RETRY%poppers"),
            "queueId": str(message.queue_id),
            "offset": str(message.offset),
            "extraInfo": message.handle,
        }
        await self.rig.call(Request(RequestCode.ACK_MESSAGE, fields, version=479))

    # -- decisions --------------------------------------------------------------------------------

    async def _decide(self, code: RequestCode, **command: Any) -> Expected | None:
        """Decide about a message; return it if it was pending."""
        if not self.messages:
            return None
        topic, unique = self.chance.choice(list(self.messages))
        message = self.messages[topic, unique]
        body = json.dumps({"ids": [unique], "topic": topic, **command}).encode()
        response = await self._call(Request(code, {}, body))
        [result] = json.loads(bytes(response.body))["results"]
        was_pending = message.state is State.PENDING
        if result["verdict"] == "refused":  # a level message is moved like a new send
            assert code == RequestCode.MOVE_PENDING, result
            assert self._is_missing(message), (message, result)
            return None
        if message.state is State.CANCELLED and code == RequestCode.CANCEL_PENDING:
            assert result["verdict"] == "done", result
        elif result["verdict"] != "unknown" or not self.rig.broker.store.min_offset:
            assert (result["verdict"] == "done") == was_pending, (message, result)
        return message if was_pending else None

    def _is_missing(self, message: Expected) -> bool:
        """Return whether the topic of a message is deleted."""
        return message.topic == CHANGING and not self._exists

    def _fired(self, message: Expected) -> None:
        missing = self._is_missing(message)
        message.state = State.QUARANTINED if missing else State.FIRED

    async def cancel(self) -> None:
        message = await self._decide(RequestCode.CANCEL_PENDING)
        if message is not None:
            message.state = State.CANCELLED

    async def fire(self) -> None:
        message = await self._decide(RequestCode.FIRE_PENDING)
        if message is not None:
            self._fired(message)

    async def move(self) -> None:
        due_ms = self.now_ms + self.chance.choice([-1_000, *TIMERS_MS])
        message = await self._decide(RequestCode.MOVE_PENDING, deliver_ms=due_ms)
        if message is None:
            return
        if due_ms <= self.now_ms:
            self._fired(message)
        else:
            message.due_ms = due_ms

    # -- operations -------------------------------------------------------------------------------

    async def schedule(self) -> None:
        """Create or delete a recurring schedule, or trigger an occurrence."""
        name = self.chance.choice("ab")
        action = self.chance.choice(["create", "create", "trigger", "delete"])
        definition = {"name": name, "topic": "Other", "body": "aGVsbG8=", "every_ms": 10_000}
        body = json.dumps(definition).encode() if action == "create" else b""
        fields = {"action": action, "name": name, "topic": "Other"}
        await self.rig.call(Request(RequestCode.CHANGE_SCHEDULE, fields, body))

    async def migrate(self) -> None:
        """Command a migration of a level, which may be refused."""
        action = self.chance.choice(["start", "start", "rollback", "pause", "resume", "verify"])
        body = {"action": action, "levels": [self.chance.randint(1, 4)], "operator": "test"}
        request = Request(RequestCode.MIGRATE, {}, json.dumps(body).encode())
        number, turns = self.rig.client.write(request), itertools.count(1)

        def responds() -> bool:
            if next(turns) % STEP_TURNS == 0:  # a verification waits for steps of the migration
                self.rig.clock.advance(PAUSE_MS)
            return number in self.rig.client.responses

        await self.rig.until(responds)
        await self._advance(0)

    def _age(self) -> None:
        """Make every log file old."""
        for file in self.rig.broker.store.log.files[:-1]:
            os.utime(file.path, (0, 0))

    async def compact(self) -> None:
        self._age()
        await self.rig.call(Request(RequestCode.COMPACT_TIMERS, {}, b"{}"))
        for _ in range(TURNS_MAX):
            fields = {"view": "timer_store.summary"}
            response = await self._call(Request(RequestCode.GET_VIEW, fields))
            if not json.loads(bytes(response.body))["compaction"]["running"]:
                return
            await self._advance(PAUSE_MS)
        raise AssertionError("the compaction does not end")

    async def remove(self) -> None:
        """Remove the log files that nothing pins."""
        self._age()
        self.rig.broker.store.flush()
        self.rig.broker.store.retention.clean()

    async def levels(self) -> None:
        text = self.chance.choice(LEVELS)
        body = f"messageDelayLevel={text}\n".encode()
        if (await self.rig.call(Request(RequestCode.UPDATE_BROKER_CONFIG, {}, body))).code == 0:
            self.rig.properties["messageDelayLevel"] = text
            self._delays = parse_levels(text).tolist()

    async def change_topic(self) -> None:
        """Delete a topic, or create it again."""
        if self._exists:
            code = RequestCode.DELETE_TOPIC_IN_BROKER
            await self._call(Request(code, {"topic": CHANGING}))
            self._exists = False
        else:
            await self._create_topic()

    async def _create_topic(self) -> None:
        fields = topic_fields(CHANGING, 2)
        await self._call(Request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        self._exists = True

    async def persist(self) -> None:
        assert await self.rig.persist()

    # -- time and restarts ------------------------------------------------------------------------

    async def _advance(self, step_ms: int) -> None:
        """Move the clock, and note what was due."""
        await self.rig.advance(step_ms)
        self._note_due()

    def _note_due(self) -> None:
        for message in self.messages.values():
            if message.state is State.PENDING and message.due_ms <= self.now_ms:
                missing = self._is_missing(message)
                message.state = State.QUARANTINED if missing else State.DELIVERED
                message.may_end = False

    async def forward(self) -> None:
        await self._advance(self.chance.choice(FORWARD_MS))

    async def step_back(self) -> None:
        """Set the clock back; records before and after it prove the step."""
        for _ in range(BEFORE_STEP):
            await self.plain()
        await self._advance(-self.chance.choice([2_000, 20_000]))
        for _ in range(AFTER_STEP):
            await self.plain()

    async def restart(self) -> None:
        await self.rig.stop()
        self._audit_some()
        await self._begin()

    async def kill(self) -> None:
        await self.rig.die(cut=False)
        self._audit_some()
        await self._begin()

    async def kill_while_delivering(self) -> None:
        """Kill the broker while overdue messages are delivered."""
        self.rig.clock.advance(OVERDUE_MS)
        await self.rig.turn(self.chance.randrange(12))
        for message in self.messages.values():
            is_due = message.due_ms <= self.now_ms
            message.may_end = message.state is State.PENDING and is_due
        await self.kill()

    async def _begin(self) -> None:
        self._popped.clear()
        await self.rig.start()
        await self._advance(0)

    # -- audits -----------------------------------------------------------------------------------

    async def audit(self) -> None:
        """Audit the store of the running broker."""
        await self._advance(0)
        await self.rig.confirmed()
        self._audit()

    def _audit_some(self) -> None:
        """Audit some of the stores that were stopped or killed."""
        if self.chance.random() < AUDITED_SHARE:
            self._audit()

    def _audit(self) -> None:
        self._audits.check(self.rig.root, self.messages, self.now_ms)
