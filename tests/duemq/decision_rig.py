"""Pending messages with hard names, decided on over a connection, against a dictionary.

Names are shared by messages and batches, look like each other's ids, belong to other brokers, or
are unknown; the index stops at times, as on a full disk; topics, files and ports do not matter.
"""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any

from duemq.broker.broker import Broker
from duemq_common.codes import RequestCode
from message_store.log.offset_id import encode_offset_id
from tests.support.running_broker import BrokerClient

TOPIC = "T"
DUE_MS = 3_600_000
FOREIGN = (b"\x0a\x00\x00\x01", 10_911)
PENDING, CANCELLED, DELIVERED = "pending", "cancelled", "already delivered"


@dataclass(slots=True)
class Message:
    """One message: its names, and what became of it."""

    number: int
    unique: str
    offset_id: str
    keys: frozenset[str]
    state: str = PENDING


class DecisionRig:
    """Messages of one broker and what must be answered about them."""

    def __init__(
        self, broker: Broker, client: BrokerClient, clock: Any, chance: random.Random
    ) -> None:
        self._broker, self._client = broker, client
        self._clock, self._chance = clock, chance
        self.messages: list[Message] = []
        self.decisions = 0
        self.false: list[str] = []

    # -- putting --------------------------------------------------------------------------------

    def _unique(self) -> str:
        """Return a unique key: fresh, one that is there already, or one that looks like an id."""
        draw, known = self._chance.random(), self.messages
        if known and draw < 0.15:
            return self._chance.choice(known).unique
        if draw < 0.25:  # of a message here: the id it would have at another broker
            offset = self._chance.randrange(max(self._broker.store.max_offset, 1))
            return encode_offset_id(*FOREIGN, offset)
        return f"{self._chance.getrandbits(128):032X}"

    async def put(self) -> None:
        """Send a level message or a timer."""
        unique, keys = self._unique(), self._keys()
        timer = self._chance.random() < 0.6
        delay = {"TIMER_DELAY_MS": str(DUE_MS)} if timer else {"DELAY": "2"}
        number = len(self.messages)
        sent = await self._client.send(
            TOPIC, b"%d" % number, UNIQ_KEY=unique, KEYS=" ".join(sorted(keys)), **delay
        )
        assert sent.code == 0, sent.remark
        offset_id = str((sent.fields or {})["msgId"])
        self.messages.append(Message(number, unique, offset_id, keys))

    async def put_batch(self) -> None:
        """Send timers as one batch: all have its unique key."""
        unique, entries = self._unique(), list[Any]()
        count = self._chance.choice([2, 10, 90])
        for _ in range(count):
            text, body = (
                b"TIMER_DELAY_MS\x01%d\x02" % DUE_MS,
                b"%d" % (len(self.messages) + len(entries)),
            )
            head = struct.pack(">5i", 22 + len(body) + len(text), 0, 0, 0, len(body))
            entries.append(head + body + struct.pack(">h", len(text)) + text)
        fields = {
            "a": "p",
            "b": TOPIC,
            "c": "TBW102",
            "d": 1,
            "e": 0,
            "f": 0,
            "g": 1,
            "h": 0,
            "i": f"UNIQ_KEY\x01{unique}\x02",
            "j": 0,
            "k": "false",
            "m": "true",
        }
        sent = await self._client.call(320, fields, b"".join(entries))
        assert sent.code == 0, sent.remark
        for offset_id in (sent.fields or {})["msgId"].split(","):
            message = Message(len(self.messages), unique, offset_id, frozenset())
            self.messages.append(message)

    def _keys(self) -> frozenset[str]:
        return frozenset(f"k{self._chance.randrange(40)}" for _ in range(self._chance.randrange(3)))

    # -- deciding -------------------------------------------------------------------------------

    def _name(self) -> str:
        """Return what to name in a request: mostly a message that is there, in some way."""
        draw = self._chance.random()
        if not self.messages or draw < 0.1:
            return f"{self._chance.getrandbits(128):032X}"
        message = self._chance.choice(self.messages[-200:])
        if draw < 0.25:  # the id of another broker's message at the same offset
            return encode_offset_id(*FOREIGN, int(message.offset_id[-16:], 16))
        if draw < 0.3:  # one byte before or after a record of ours
            host = self._broker.parts.identity.host
            return encode_offset_id(*host, int(message.offset_id[-16:], 16) + 1)
        return message.offset_id if draw < 0.6 else message.unique

    def _meant(self, name: str) -> list[Message]:
        """Return the messages with a name: a unique key counts before an offset id."""
        return [m for m in self.messages if m.unique == name] or [
            m for m in self.messages if m.offset_id == name
        ]

    async def decide(self) -> None:
        """Cancel or fire by ids, or cancel by keys; compare the answer."""
        by_keys = self._chance.random() < 0.2
        code = (
            RequestCode.FIRE_PENDING if self._chance.random() < 0.2 else RequestCode.CANCEL_PENDING
        )
        if by_keys:
            names = [f"k{self._chance.randrange(50)}"]
            meant = {names[0]: [m for m in self.messages if names[0] in m.keys]}
        else:
            names = list(dict.fromkeys(self._name() for _ in range(self._chance.randint(1, 5))))
            meant = {name: self._meant(name) for name in names}
        command = {"keys" if by_keys else "ids": names}
        response = await self._client.call(code, {}, json.dumps(command).encode())
        assert response.code == 0, response.remark
        reported = json.loads(bytes(response.body))["results"]
        if sum(map(len, meant.values())) > len({m.number for ms in meant.values() for m in ms}):
            self._compare_shared(reported, meant, code)
        else:
            for name, result in zip(names, reported, strict=True):
                self._compare(name, result, meant[name], code)
        self.decisions += len(names)

    def _compare_shared(self, reported: Any, meant: dict[str, list[Message]], code: int) -> None:
        """Compare when two names of a request mean the same message: it counts for one of them."""
        pending = {m.number: m for ms in meant.values() for m in ms if m.state == PENDING}
        right = sum(result.get("messages", 0) for result in reported) == len(pending)
        for result, messages in zip(reported, meant.values(), strict=True):
            if any(message.number in pending for message in messages):
                right &= result["verdict"] == "done"
        if not right:
            self.false.append(f"{reported}, of {len(pending)} pending")
        for message in pending.values():
            message.state = CANCELLED if code == RequestCode.CANCEL_PENDING else DELIVERED

    def _compare(self, name: str, result: dict[str, Any], meant: list[Message], code: int) -> None:
        pending = [message for message in meant if message.state == PENDING]
        count, verdict = result.get("messages", 0), result["verdict"]
        states = {message.state for message in meant}
        if pending:
            right = (verdict, count) == ("done", len(pending))
        elif not meant:
            right = (verdict, count) == ("unknown", 0)
        else:  # of several ends any one may be reported; a cancel of what was cancelled is done
            allowed = (
                {"done" if code == RequestCode.CANCEL_PENDING else "unknown"}
                if CANCELLED in states
                else set()
            )
            allowed |= {DELIVERED} if DELIVERED in states else set()
            right = verdict in allowed and count == 0
        if not right:
            self.false.append(f"{name}: {result}, of {Counter(m.state for m in meant)}")
        for message in pending:
            message.state = CANCELLED if code == RequestCode.CANCEL_PENDING else DELIVERED

    async def end(self, bodies: list[bytes]) -> None:
        """Compare what was delivered in the end with what was answered."""
        wanted = Counter(b"%d" % m.number for m in self.messages if m.state != CANCELLED)
        found = Counter(bodies)
        if found != wanted:
            self.false.append(f"delivered beyond: {sorted((found - wanted).elements())[:5]}")
            self.false.append(f"not delivered: {sorted((wanted - found).elements())[:5]}")
