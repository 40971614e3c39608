"""Every request that Apache's brokers were recorded answering, answered by ours.

Code and set of fields must be the same, and where the recording decides them, values too. What
may differ is listed here by name, and counted, so that nothing hides behind it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from broker.broker import Broker
from broker.plugins import Installed
from message_store.clock import FakeClock
from message_store.plugin import ENTRY_POINT_GROUP
from message_store.record import decode_record
from tests.broker.replay import Exchange, Frame, Replay, read_frames

LEVELS = Installed(
    "schedule_service",
    EntryPoint("schedule_service", "schedule_service.plugin:create_plugin", ENTRY_POINT_GROUP),
)


@dataclass(frozen=True)
class Recording:
    """Streams of clients of one Apache broker, one after another.

    Attributes:
        started_ms: when that broker started: its transaction checks keep time from there.
        topics: what existed before, with so many queues.
        compared: how many answers are compared.
    """

    streams: tuple[str, ...]
    started_ms: int
    topics: dict[str, int]
    compared: int
    properties: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.streams[0]


GOLDEN_TOPICS = dict.fromkeys(
    ("GoldenPlain", "GoldenDelay", "GoldenTx", "GoldenOrder", "GoldenTimer"), 4
)
RECORDINGS = (
    Recording(
        ("java-4.9.7-vs-apache-4.9.7",),
        1795225430000,
        GOLDEN_TOPICS,
        258,
        {"transactionCheckInterval": "60000"},
    ),
    Recording(("java-5.3.3-vs-apache-5.3.3",), 1795225824450, GOLDEN_TOPICS, 247),
    Recording(
        (
            "go-2.1.2-vs-apache-5.3.3",
            "cpp-1.0.1-vs-apache-5.3.3",
            "mqadmin-5.3.3-vs-apache-5.3.3",
        ),
        1795226960693,
        {"GoT": 4, "CppT": 4},
        140,
    ),
)
PULLS = (11, 361)
TIMER_TOPIC = "GoldenTimer"
TIMER_QUEUES = {("GoT", "1"), ("CppT", "0")}  # a timer waits there among other messages
FIELDS_OF_5 = {
    11: {"groupSysFlag", "topicSysFlag"},
    34: {"IS_SUB_CHANGE", "IS_SUPPORT_HEART_BEAT_V2"},
    310: {"transactionId"},
}
VALUES = {
    10: ("queueId", "queueOffset", "transactionId"),
    11: ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"),
    14: ("offset",),
    29: ("offset",),
    30: ("offset",),
    31: ("offset",),
    310: ("queueId", "queueOffset", "transactionId"),
    320: ("queueId", "queueOffset", "transactionId"),
    361: ("nextBeginOffset", "minOffset", "maxOffset"),
}


async def replay(recording: Recording, root: str) -> tuple[list[Exchange], Replay]:
    clock = FakeClock(recording.started_ms)
    properties = {
        "storePathRootDir": root,
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "brokerName": "broker-a",
        "brokerClusterName": "DefaultCluster",
        "embeddedNamesrvEnable": "true",
        "embeddedNamesrvPort": "0",
        "metricsExporterType": "DISABLE",
        "maxMessageSize": "20000",
    }
    exchanges = []
    async with Broker(properties | recording.properties, clock=clock, plugins=[LEVELS]) as broker:
        for name, queues in recording.topics.items():
            await broker.parts.topics.ensure(name, queues=queues)
        run = Replay(broker, clock)
        for stream in recording.streams:
            exchanges += await run.run(read_frames(stream))
    return exchanges, run


def messages(body: bytes) -> list[tuple[Any, ...]]:
    """Return what a client sees of the messages in a body; ids name log offsets: left out."""
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        record = decode_record(memoryview(body)[at : at + size], at)
        shown = record.properties.keys() - {"ORIGIN_MESSAGE_ID"}
        properties = {name: record.properties[name] for name in shown}
        place = (record.topic, record.queue_id, record.queue_offset)
        found.append((*place, record.body, record.sys_flag, record.reconsume_times, properties))
        at += size
    return found


def is_left_out(request: Frame) -> bool:
    """Return whether only a timer plugin could answer as Apache did: timers are refused."""
    named = (request.fields.get("topic"), request.fields.get("b"))
    return request.code == 370 or TIMER_TOPIC in named or sees_timers(request)


def sees_timers(request: Frame) -> bool:
    """Return whether a timer among other messages decides values of the answer."""
    queue = (request.fields.get("topic"), str(request.fields.get("queueId")))
    return queue in TIMER_QUEUES or "TIMER_" in request.fields.get("properties", "")


def newer(exchange: Exchange) -> tuple[int, set[str]]:
    """Return the code and fields that 5.3.3 answers where 4.9.7 answered `theirs`."""
    theirs = exchange.theirs
    code, fields = theirs.code, set(theirs.fields)
    if exchange.request.code == 14 and theirs.fields == {"offset": "0"}:
        empty = exchange.ours.code == 22  # 4.9.7 lets a queue without messages begin at 0
        return (22, set()) if empty else (code, fields)
    if fields or exchange.request.code == 34:
        fields |= FIELDS_OF_5.get(exchange.request.code, set())
    return code, fields


def faults(exchange: Exchange, *, old: bool) -> Iterator[str]:
    """Yield in what our answer is not what the recording wants."""
    theirs, ours = exchange.theirs, exchange.ours
    if ours is None:
        yield "not answered"
        return
    code, fields = newer(exchange) if old else (theirs.code, set(theirs.fields))
    fields.discard("recallHandle")
    if (ours.code, set(ours.fields)) != (code, fields):
        yield f"{ours.code} {sorted(ours.fields)}, not {code} {sorted(fields)}: {ours.remark}"
    elif bool(ours.body) != bool(theirs.body):
        yield f"a body of {len(ours.body)} bytes, not of {len(theirs.body)}"
    else:
        yield from _other_values(exchange, old=old)


def _other_values(exchange: Exchange, *, old: bool) -> Iterator[str]:
    theirs, ours = exchange.theirs, exchange.ours
    if old and exchange.request.code == 29:
        return  # 4.9.7 answers the nearest message, 5.3.3 the next one
    for name in VALUES.get(exchange.request.code, ()):
        if name in ours.fields and ours.fields[name] != theirs.fields.get(name, ours.fields[name]):
            yield f"{name} is {ours.fields[name]}, not {theirs.fields[name]}"
    if exchange.request.code in PULLS:
        if ours.remark != theirs.remark:
            yield f"{ours.remark}, not {theirs.remark}"
        if not old and messages(ours.body) != messages(theirs.body):
            yield f"{messages(ours.body)}, not {messages(theirs.body)}"


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_our_answers_are_apaches(recording, tmp_path):
    exchanges, run = asyncio.run(replay(recording, str(tmp_path)))
    compared = [e for e in exchanges if e.theirs is not None and not is_left_out(e.request)]
    wrong = [
        f"{e.request.server} {e.request.code} {e.request.fields}: {fault}"
        for e in compared
        for fault in faults(e, old="4.9.7" in recording.streams[0])
    ]
    assert wrong == []
    assert len(compared) == recording.compared
    assert run.pushed["ours"] == run.pushed["theirs"]


def test_what_is_not_compared_is_about_timers():
    """Timers are answered by a plugin that is not there yet; nothing else is left out."""
    left_out = Counter()
    for recording in RECORDINGS:
        for stream in recording.streams:
            asked = [f for f in read_frames(stream) if not f.is_answer and not f.is_oneway]
            left_out[stream] = sum(map(is_left_out, asked))
    assert left_out == {
        "java-4.9.7-vs-apache-4.9.7": 0,
        "java-5.3.3-vs-apache-5.3.3": 61,
        "go-2.1.2-vs-apache-5.3.3": 8,
        "cpp-1.0.1-vs-apache-5.3.3": 10,
        "mqadmin-5.3.3-vs-apache-5.3.3": 0,
    }
