"""Change of the broker of a store during pops: unacknowledged messages are redelivered once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duemq_common.request import Response
from tests.interop.apache import Apache
from tests.interop.store_work import TOPIC, send
from tests.interop.timer_work import KEYS as TIMER_KEYS
from tests.support.duemq_server import DueMQ
from tests.support.pop_client import Popped, popped
from tests.support.remoting_requests import call
from tests.support.server import BROKER_NAME, Server
from tests.support.wait_until import now_ms, until

VERSION = "5.3.3"
GROUP = "g"
POP, ACK, UPDATE_GROUP, NOT_FOUND = 200_050, 200_051, 200, 210
INVISIBLE_MS, LONG_MS = 12_000, 300_000
BACK_S = 120.0
# Apache's threads reorder timers when they roll: acknowledgements could precede their checkpoint.
KEYS = {key: value for key, value in TIMER_KEYS.items() if key != "timerRollWindowSlot"}


@dataclass
class PopLedger:
    """Messages sent to `TOPIC`, and popped and acknowledged by group `g`, by body."""

    sent: list[str] = field(default_factory=list)
    held: dict[str, Popped] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)
    kept: Popped | None = None

    def fill(self, server: Server) -> None:
        """Send 32 messages; pop 20, acknowledge every second of these and hold the others.

        One more is popped with a long invisible time.
        """
        server.create_topic(TOPIC, queue_count=1)
        config = {"groupName": GROUP, "consumeEnable": True}
        assert call(server.broker_port, UPDATE_GROUP, {}, json.dumps(config).encode()).code == 0
        for number in range(32):
            self.sent.append(f"m-{number}")
            send(server, self.sent[-1], 0, {})
        found = until(lambda: self.pop(server, 20), seconds=BACK_S, what="messages are popped")
        for message in found[::2]:
            self.acknowledge(server, message)
        (self.kept,) = self.pop(server, 1, LONG_MS)

    def pop(
        self, server: Server, count: int = 32, invisible_ms: int = INVISIBLE_MS
    ) -> list[Popped]:
        """Pop messages without acknowledging them."""
        fields = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": str(count),
            "invisibleTime": str(invisible_ms),
            "pollTime": "0",
            "bornTime": str(now_ms()),
            "initMode": "0",
            "exp": "*",
            "expType": "TAG",
            "order": "false",
        }
        response = call(server.broker_port, POP, fields)
        if response.code != 0:
            assert response.code == NOT_FOUND, f"{response.code} {response.remark}"
            return []
        found = popped(Response(0, "", response.fields, response.body), TOPIC, BROKER_NAME)
        self.held |= {message.body.decode(): message for message in found}
        return found

    def acknowledge(self, server: Server, message: Popped) -> None:
        fields = {
            "consumerGroup": GROUP,
            "topic": message.real_topic,
            "queueId": str(message.queue_id),
            "offset": str(message.offset),
            "extraInfo": message.handle,
        }
        response = call(server.broker_port, ACK, fields)
        assert response.code == 0, f"{response.code} {response.remark}"
        self.acknowledged.append(message.body.decode())
        del self.held[message.body.decode()]

    def drain(self, server: Server) -> None:
        """Pop and acknowledge until all messages are acknowledged."""

        def take() -> bool:
            for message in self.pop(server):
                self.acknowledge(server, message)
            return set(self.acknowledged) == set(self.sent)

        until(take, seconds=BACK_S, what="everything is acknowledged", poll_s=0.2)

    def check(self, server: Server) -> None:
        """Check that each message was acknowledged once, and that no message remains."""
        assert sorted(self.acknowledged) == sorted(self.sent)
        assert self.pop(server) == []


@pytest.mark.extended
@pytest.mark.parametrize("first", ["ours", "apache"])
def test_a_store_changes_its_broker_during_a_pop(first: str, tmp_path: Path) -> None:
    """One message is acknowledged at the other broker, with the handle of the first."""
    ledger, store = PopLedger(), tmp_path / "store"
    ours = DueMQ(tmp_path / "ours", store_dir=store, keys=KEYS)
    apache = Apache(VERSION, tmp_path / "apache", store_dir=store, keys=KEYS)
    before, after = (ours, apache) if first == "ours" else (apache, ours)
    with before:
        ledger.fill(before)
        before.stop()
    with after:
        assert len(ledger.held) == 11
        assert ledger.kept is not None
        ledger.acknowledge(after, ledger.kept)
        ledger.drain(after)
        ledger.check(after)
