"""Priorities of Java's client 5.5.1; queues and pops by priority are those of Apache's broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.request import Response
from message_store.log.record import Record
from tests.interop.apache import NEWEST, Apache
from tests.interop.apache_proxy import typed_topic
from tests.interop.conftest import JavaSessions
from tests.interop.peers import KEYS
from tests.interop.store_work import SEND
from tests.interop.test_pop_stores import POP
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.pop_client import records_of
from tests.support.remoting_requests import SUCCESS, call
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

PRIORITY = "_SYS_MSG_PRIORITY_"
QUEUES, LAST = 4, 3
WAIT_S = 120.0


def pop_one(server: Server, topic: str, group: str) -> list[Record]:
    """Pop one message, with an invisible time that is longer than the test."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "-1",
        "maxMsgNums": "1",
        "invisibleTime": "600000",
        "pollTime": "0",
        "bornTime": str(now_ms()),
        "initMode": "0",
    }
    response = call(server.broker_port, POP, fields)
    if response.code != SUCCESS:
        return []
    return list(records_of(Response(0, "", response.fields, response.body)))


def pop_all(server: Server, topic: str, group: str, count: int) -> list[Record]:
    """Pop messages one by one, until there are as many as expected."""
    found: list[Record] = []

    def is_complete() -> bool:
        while len(found) < count and (popped := pop_one(server, topic, group)):
            found.extend(popped)
        return len(found) == count

    until(is_complete, seconds=WAIT_S, what=f"{count} messages of {topic}", poll_s=0.1)
    return found


def send(server: Server, topic: str, body: str, properties: dict[str, str]) -> int:
    """Send a message to queue 1; return the queue that the response names."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": str(QUEUES),
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": str(now_ms()),
        "flag": "0",
        "properties": text,
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    response = call(server.broker_port, SEND, fields, body.encode())
    assert response.code == SUCCESS, response.remark
    return int(response.fields["queueId"])


@pytest.mark.parametrize("kind", ["duemq", extended(f"apache-{NEWEST}")])
def test_queues_and_pops_by_priority(kind: str, tmp_path: Path) -> None:
    """Both brokers do the same, except that Apache's removes the priority of a delayed message."""
    ours = kind == "duemq"
    with DueMQ(tmp_path, keys=KEYS) if ours else Apache(NEWEST, tmp_path, keys=KEYS) as server:
        typed_topic(server, "T", "PRIORITY", queue_count=QUEUES)
        queues = [send(server, "T", text, {PRIORITY: text}) for text in ("0", "3", "99", "x")]
        assert queues == [0, LAST, LAST, 1]
        ordered = {PRIORITY: "2", "__SHARDINGKEY": "s"}
        assert send(server, "T", "ordered", ordered) == 1
        popped = pop_all(server, "T", "g", 5)
        assert [each.body for each in popped[:2]] == [b"3", b"99"]
        assert {each.body for each in popped[2:4]} == {b"x", b"ordered"}
        assert popped[4].body == b"0"
        shown = {each.body: each.properties.get(PRIORITY) for each in popped}
        assert shown == {b"0": "0", b"3": "3", b"99": "99", b"x": "x", b"ordered": None}
        for body, delay in (("level", {"DELAY": "1"}), ("timer", {"TIMER_DELAY_MS": "1500"})):
            assert send(server, "T", body, {PRIORITY: "3", **delay}) == (LAST if ours else 1)
        for each in pop_all(server, "T", "g", 2):
            assert each.queue_id == (LAST if ours else 1)
            assert each.properties.get(PRIORITY) == ("3" if ours else None)


@pytest.mark.parametrize("level", [{}, {"level": 1}], ids=["now", "delayed"])
def test_a_java_client_sends_priorities(
    server: Server, java_sessions: JavaSessions, name: str, level: dict[str, int]
) -> None:
    typed_topic(server, name, "PRIORITY", queue_count=QUEUES)
    java = java_sessions(NEWEST)
    sent = java.events("produce", "sent", topic=name, n=QUEUES, priorities=True, **level)
    assert [each["queueId"] for each in sent] == list(range(QUEUES))
    received: list[int] = []

    def is_complete() -> bool:
        """Pull queue by queue: a delivery between two of them is in two pulls."""
        messages = java.events("pull", "message", topic=name, group=f"all-{name}")
        received.extend(each["queueId"] for each in messages)
        return len(received) >= QUEUES

    until(is_complete, seconds=WAIT_S, what="all messages are delivered")
    assert sorted(received) == list(range(QUEUES))
    popped = pop_all(server, name, "g", QUEUES)
    assert [each.properties[PRIORITY] for each in popped] == ["3", "2", "1", "0"]
