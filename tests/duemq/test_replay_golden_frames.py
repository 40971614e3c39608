"""Every request that Apache's brokers were recorded answering, answered by ours.

Code and set of fields must be the same, and where the recording decides them, values too. What
may differ is listed here by name; every request is compared, and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.broker import Broker
from duemq.broker.plugins import InstalledPlugin
from duemq_common.clock import FakeClock
from message_store.log.record import decode_record
from tests.duemq.hold_timers import LEVELS
from tests.support.frame_replay import Exchange, Replay, read_frames


@dataclass(frozen=True)
class Recording:
    """Streams of clients of one Apache broker, one after another.

    Attributes:
        started_ms: when that broker started: its transaction checks keep time from there.
        topics: what existed before, with so many queues.
        compared: how many answers are compared: all that Apache gave.
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
    Recording(("java-5.3.3-vs-apache-5.3.3",), 1795225824450, GOLDEN_TOPICS, 304),
    Recording(
        (
            "go-2.1.2-vs-apache-5.3.3",
            "cpp-1.0.1-vs-apache-5.3.3",
            "mqadmin-5.3.3-vs-apache-5.3.3",
        ),
        1795226960693,
        {"GoT": 4, "CppT": 4},
        155,
    ),
)
PULLS = (11, 361)
TIMERS = InstalledPlugin(
    "timer_store",
    EntryPoint("timer_store", "timer_store.plugin:create_plugin", ENTRY_POINT_GROUP),
)
FIELDS_OF_5 = {
    11: {"groupSysFlag", "topicSysFlag"},
    34: {"IS_SUB_CHANGE", "IS_SUPPORT_HEART_BEAT_V2"},
    310: {"transactionId"},
}
VALUES = {
    10: ("queueId", "queueOffset", "transactionId", "recallHandle"),
    11: ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"),
    14: ("offset",),
    29: ("offset",),
    30: ("offset",),
    31: ("offset",),
    310: ("queueId", "queueOffset", "transactionId", "recallHandle"),
    320: ("queueId", "queueOffset", "transactionId"),
    361: ("nextBeginOffset", "minOffset", "maxOffset"),
    370: ("msgId", "MSG_REGION"),
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
        "recallMessageEnable": "true",
    }
    exchanges = []
    async with Broker(
        properties | recording.properties, clock=clock, plugins=[LEVELS, TIMERS]
    ) as broker:
        for name, queues in recording.topics.items():
            await broker.parts.topics.ensure(name, queues=queues)
        run = Replay(broker, clock)
        for stream in recording.streams:
            exchanges += await run.run(read_frames(stream))
    return exchanges, run


def messages(body: bytes) -> list[tuple[Any, ...]]:
    """Return what a client sees of the messages in a body.

    Left out: ids, which name log offsets, and the times of deliveries of timers: Apache keeps
    seconds.
    """
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        record = decode_record(memoryview(body)[at : at + size], at)
        shown = record.properties.keys() - {"ORIGIN_MESSAGE_ID"}
        properties = {name: record.properties[name] for name in shown}
        if "TIMER_DEQUEUE_MS" in properties:
            left_ms = int(properties["TIMER_DEQUEUE_MS"])
            properties["TIMER_DEQUEUE_MS"] = left_ms > int(properties["TIMER_OUT_MS"])  # type: ignore[assignment]
        place = (record.topic, record.queue_id, record.queue_offset)
        found.append((*place, record.body, record.sys_flag, record.reconsume_times, properties))
        at += size
    return found


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
def test_our_answers_are_apaches(recording: Recording, tmp_path: Path) -> None:
    exchanges, run = asyncio.run(replay(recording, str(tmp_path)))
    compared = [e for e in exchanges if e.theirs is not None]
    wrong = [
        f"{e.request.server} {e.request.code} {e.request.fields}: {fault}"
        for e in compared
        for fault in faults(e, old="4.9.7" in recording.streams[0])
    ]
    assert wrong == []
    assert len(compared) == recording.compared
    assert run.pushed["ours"] == run.pushed["theirs"]
