from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.pull.long_polls import LongPolls, ResumeReason
from duemq.pull.reset_offsets import ResetProcessor
from duemq.registry.clients import ClientTable
from duemq.registry.groups import GroupConfig
from duemq.registry.heartbeats import ConsumerEntry, Heartbeat
from duemq.registry.managers import Identity
from duemq.registry.subscriptions import parse_expression
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.support.fakes import (
    HOST,
    FakeGroups,
    FakeOffsets,
    FakePeer,
    FakeTopics,
    fake_topic,
)
from tests.support.stores import open_store, put_one

START_MS = 1_000_000


class Rig:
    """Topic T with two queues; queue 0 has five messages, stored one second apart."""

    def __init__(self, root: Path) -> None:
        self.pushes = False
        self.clock = FakeClock(START_MS)
        self.store = open_store(root, self.clock).__enter__()
        for _ in range(5):
            put_one(self.store, "T")
            self.clock.advance(1_000)
        self.offsets, self.clients = FakeOffsets(), ClientTable()
        self.groups = FakeGroups(GroupConfig(name="G"))
        self.long_polls = LongPolls(self.clock, self.store)
        self.processor = ResetProcessor(
            self.store,
            FakeTopics(fake_topic("T", 2, 2)),
            self.groups,
            self.offsets,
            self.clients,
            self.long_polls,
            Identity("b", "C", 0, HOST),
            push=lambda: self.pushes,
        )

    def join(self, peer: FakePeer, language: str, version: int = 479) -> None:
        entry = ConsumerEntry("G", "x", "CLUSTERING", "x", (parse_expression("T", "*"),))
        self.clients.heartbeat(
            Heartbeat(peer.name, (), (entry,)), peer, language=language, version=version, now_ms=0
        )

    async def reset(self, **changes: int | str) -> Response | None:
        fields = {"topic": "T", "group": "G", "timestamp": START_MS, "isForce": "true"} | changes
        found = {name: str(value) for name, value in fields.items()}
        return await self.processor.handlers()[222](Request(222, found))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {0: 0, 1: 0}),
        ({"timestamp": START_MS + 1_500}, {0: 2, 1: 0}),
        ({"timestamp": -1}, {0: 5, 1: 0}),
        ({"queueId": 0, "offset": 3}, {0: 3}),
        ({"queueId": 0, "offset": 6}, {0: 6}),
        ({"queueId": 0, "timestamp": -1}, {0: 5}),
        ({"queueId": -1, "offset": -1, "timestamp": -1}, {0: 5, 1: 0}),
    ],
)
def test_new_offsets_of_a_reset(
    run: Callable[..., Any], rig: Rig, changes: dict[str, int], wanted: dict[int, int]
) -> None:
    response = run(rig.reset(**changes))
    assert {key[2]: at for key, at in rig.offsets.resets.items()} == wanted
    parts = [f'{{"brokerName":"b","queueId":{q},"topic":"T"}}:{at}' for q, at in wanted.items()]
    assert response.body.decode() == '{"offsetTable":{' + ",".join(parts) + "}}"


@pytest.mark.parametrize(
    ("changes", "known", "code"),
    [
        ({"topic": "none"}, True, 17),
        ({}, False, 26),
        ({"queueId": 2, "offset": 0}, True, 1),
        ({"queueId": 0, "offset": 7}, True, 1),
        ({"timestamp": "x"}, True, 1),
    ],
)
def test_codes_of_refused_resets(
    run: Callable[..., Any], rig: Rig, changes: dict[str, str | int], known: bool, code: int
) -> None:
    if not known:
        rig.groups.table.clear()
    with pytest.raises(RequestError) as refusal:
        run(rig.reset(**changes))
    assert (refusal.value.code, rig.offsets.resets) == (code, {})


@pytest.mark.finding("D2")
def test_members_get_no_request_by_default(run: Callable[..., Any], rig: Rig) -> None:
    java = FakePeer("java")
    rig.join(java, "JAVA")
    run(rig.reset())
    assert java.sent == []
    assert rig.offsets.resets


def test_members_get_the_offsets_in_the_format_of_their_language(
    run: Callable[..., Any], rig: Rig
) -> None:
    rig.pushes = True
    java, cpp, old = FakePeer("java"), FakePeer("cpp"), FakePeer("old")
    rig.join(java, "JAVA")
    rig.join(cpp, "CPP")
    rig.join(old, "JAVA", 27)
    run(rig.reset(queueId=0, offset=3))
    (reported,) = java.sent
    assert reported.fields == {
        "topic": "T",
        "group": "G",
        "timestamp": str(START_MS),
        "isForce": "true",
    }
    assert reported.body == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:3}}'
    assert json.loads(cpp.sent[0].body) == {
        "offsetTable": [{"brokerName": "b", "offset": 3, "queueId": 0, "topic": "T"}]
    }
    assert old.sent == []


def test_a_reset_resumes_long_polls(run: Callable[..., Any], rig: Rig) -> None:
    async def scene() -> None:
        slot = rig.store.topics.slot(rig.store.topics.find("T"), 0)
        pull = rig.long_polls.hold(slot, parse_expression("T", "*"), None, 9_000)
        await rig.reset()
        assert await pull.resumed is ResumeReason.ARRIVED

    run(scene())
