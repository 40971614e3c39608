from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.configuration.config import BrokerConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.pull.long_polls import LongPolls
from duemq.pull.pull import PullProcessor
from duemq.registry.clients import ClientTable
from duemq.registry.groups import GroupConfig
from duemq.registry.heartbeats import ConsumerEntry, Heartbeat
from duemq.registry.subscriptions import parse_expression
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.store import MessageStore
from tests.support.fakes import (
    FakeGroups,
    FakeOffsets,
    FakePeer,
    FakeStore,
    FakeTopics,
    fake_topic,
    put,
    settle,
)
from tests.support.handled import handled
from tests.support.stores import open_store

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
HEADER = {
    "suggestWhichBrokerId",
    "nextBeginOffset",
    "minOffset",
    "maxOffset",
    "topicSysFlag",
    "groupSysFlag",
}


class Rig:
    """Pull processor with topic T (4 queues) and group G, which subscribes to it."""

    def __init__(
        self,
        *,
        store: FakeStore | MessageStore | None = None,
        group: GroupConfig | None = None,
        topic: TopicConfig | None = None,
        auto_create: bool = True,
        **config: int,
    ) -> None:
        self.store = store or FakeStore(FakeClock())
        self.clock = self.store.clock
        self.topics = FakeTopics(topic or fake_topic("T"))
        self.groups = FakeGroups(*([group] if group else ()), auto_create=auto_create)
        self.offsets, self.clients = FakeOffsets(), ClientTable()
        self.long_polls = LongPolls(self.clock, self.store)
        self.stats = BrokerStats(self.store.topics)
        self.peer = FakePeer()
        self.config = BrokerConfig(**config)
        self.store.add_dispatcher(self.long_polls.on_append)
        self.processor = PullProcessor(
            self.store,
            self.topics,
            self.groups,
            self.offsets,
            self.clients,
            self.long_polls,
            self.stats,
            self.config,
        )

    def join(
        self,
        *,
        topics: tuple[str] = ("T",),
        expression: str = "*",
        kind: str = "TAG",
        version: int = 1,
        model: str = "CLUSTERING",
    ) -> None:
        reported = tuple(parse_expression(t, expression, kind, version) for t in topics)
        entry = ConsumerEntry("G", "CONSUME_PASSIVELY", model, "x", reported)
        self.clients.heartbeat(
            Heartbeat("c", (), (entry,)), self.peer, language="JAVA", version=479, now_ms=0
        )

    def request(self, **changes: int | str) -> Request:
        values = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
        }
        found = {name: str(value) for name, value in (values | changes).items()}
        return Request(11, found, peer=self.peer)

    async def pull(self, **changes: int | str) -> Response | None:
        return await handled(self.processor.pull, self.request(**changes))


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeStore | MessageStore]:
    """Return a fake and a real store: the fake must behave like the real one."""
    if request.param == "memory":
        yield FakeStore(FakeClock())
        return
    with open_store(tmp_path) as store:
        yield store


def test_messages_are_returned_as_stored_in_the_log(
    run: Callable[..., Any], store: FakeStore | MessageStore
) -> None:
    rig = Rig(store=store)
    put(rig.store, "T", b"one", b"two", b"three")
    response = run(rig.pull(queueOffset=1))
    assert (response.code, response.remark) == (0, "FOUND")
    units = store.units("T", 0, 1, 2)
    assert response.body == store.gather("T", 0, 1, units)
    assert len(response.body) == units["size"].sum()
    assert b"two" in response.body
    assert b"one" not in response.body
    assert response.fields.keys() == HEADER
    assert response.fields["nextBeginOffset"] == response.fields["maxOffset"] == "3"
    assert rig.stats.totals.got_messages == 2


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"), [(0, 0, 2), (2, 19, 2), (3, 21, 2), (-1, 21, 0)]
)
def test_every_outcome_has_the_complete_header(
    run: Callable[..., Any],
    store: FakeStore | MessageStore,
    offset: int,
    code: int,
    next_offset: int,
) -> None:
    rig = Rig(store=store)
    put(rig.store, "T", b"one", b"two")
    response = run(rig.pull(queueOffset=offset))
    assert (response.code, response.fields["nextBeginOffset"]) == (code, str(next_offset))
    assert response.fields.keys() == HEADER
    assert bool(response.body) is (code == 0)


def test_tags_are_filtered_by_hash(
    run: Callable[..., Any], store: FakeStore | MessageStore
) -> None:
    rig = Rig(store=store)
    put(rig.store, "T", b"one", properties=b"TAGS\x01a\x02")
    put(rig.store, "T", b"two", properties=b"TAGS\x01b\x02")
    response = run(rig.pull(subscription="b"))
    assert (response.code, b"one" in response.body, b"two" in response.body) == (0, False, True)
    response = run(rig.pull(subscription="c"))
    assert (response.code, response.remark) == (20, "NO_MATCHED_MESSAGE")
    assert response.fields["nextBeginOffset"] == "2"


def test_a_damaged_record_is_skipped(run: Callable[..., Any]) -> None:
    rig = Rig()
    batch = put(rig.store, "T", b"one", b"two", b"three")
    rig.store.damaged.add(int(batch.rows[1]["phys_offset"]))
    response = run(rig.pull())
    assert (response.code, response.fields["nextBeginOffset"]) == (0, "3")
    assert (b"one" in response.body, b"two" in response.body, b"three" in response.body) == (
        True,
        False,
        True,
    )
    response = run(rig.pull(queueOffset=1, maxMsgNums=1))
    assert (response.code, response.fields["nextBeginOffset"]) == (20, "2")


def test_records_removed_by_retention_are_skipped(run: Callable[..., Any]) -> None:
    rig = Rig()
    batch = put(rig.store, "T", b"one", b"two")
    rig.store.min_offset = int(batch.rows[1]["phys_offset"])  # type: ignore[misc]
    assert b"one" not in run(rig.pull()).body
    rig.store.min_offset = len(rig.store.log)  # type: ignore[misc]
    response = run(rig.pull())
    assert (response.code, response.remark) == (20, "MESSAGE_WAS_REMOVING")


@pytest.mark.parametrize(
    ("settings", "joined", "changes", "code"),
    [
        ({"permission": 2}, {}, {}, 16),
        ({"auto_create": False}, {}, {}, 26),
        ({"group": GroupConfig(name="G", consume_enable=False)}, {}, {}, 16),
        ({}, {}, {"topic": "U"}, 17),
        ({"topic": fake_topic("T", perm=2)}, {}, {}, 16),
        ({}, {}, {"queueId": 4}, 29),
        ({}, {}, {"queueId": -1}, 29),
        ({}, {}, {"subscription": "||"}, 23),
        ({}, None, {"sysFlag": 0}, 24),
        (
            {"group": GroupConfig(name="G", broadcast_enable=False)},
            {"model": "BROADCASTING"},
            {"sysFlag": 0},
            16,
        ),
        ({}, {"topics": ("U",)}, {"sysFlag": 0}, 24),
        ({}, {"version": 3}, {"sysFlag": 0, "subVersion": 4}, 25),
        (
            {"property_filter_enable": False},
            {},
            {"subscription": "a > 1", "expressionType": "SQL92"},
            1,
        ),
        ({}, {}, {"subscription": "a >", "expressionType": "SQL92"}, 23),
        ({}, {}, {"subscription": "", "expressionType": "SQL92"}, 23),
        ({}, {}, {"subscription": "a > 1", "expressionType": "SQL99"}, 23),
        ({}, {"expression": "a >", "kind": "SQL92"}, {"sysFlag": 0}, 27),
        ({}, {}, {"queueOffset": "x"}, 1),
    ],
)
def test_codes_of_refused_pulls(
    run: Callable[..., Any],
    settings: dict[str, int | GroupConfig | TopicConfig],
    joined: dict[str, str | int | tuple[str]] | None,
    changes: dict[str, str | int],
    code: int,
) -> None:
    rig = Rig(**settings)
    if joined is not None:
        rig.join(**joined)
    try:
        response = run(rig.pull(**changes))
        found, header = response.code, response.fields
    except RequestError as refusal:
        found, header = refusal.code, {}
    assert found == code
    assert set(header) == ({"forbiddenType"} if code == 16 else set())


def test_a_pull_without_a_subscription_uses_that_of_the_heartbeat(
    run: Callable[..., Any], store: FakeStore | MessageStore
) -> None:
    rig = Rig(store=store)
    rig.join(expression="b", version=3)
    put(rig.store, "T", b"one", properties=b"TAGS\x01a\x02")
    put(rig.store, "T", b"two", properties=b"TAGS\x01b\x02")
    response = run(rig.pull(sysFlag=0, subVersion=3, subscription=""))
    assert (b"one" in response.body, b"two" in response.body) == (False, True)


def test_a_pull_commits_an_offset_only_on_request(run: Callable[..., Any]) -> None:
    rig = Rig()
    run(rig.pull(commitOffset=7))
    assert rig.offsets.table == {}
    run(rig.pull(commitOffset=7, sysFlag=SUBSCRIPTION | COMMIT))
    assert rig.offsets.table == {("G", "T", 0): 7}


@pytest.mark.finding("A10")
def test_a_long_poll_does_not_keep_its_request_content(
    run: Callable[..., Any], store: FakeStore | MessageStore
) -> None:
    async def scene() -> None:
        rig = Rig(store=store)
        request = rig.request(sysFlag=SUBSCRIPTION | SUSPEND, junk="x" * 1_000)
        request.body, request.remark = b"b" * 1_000, "r" * 1_000
        pull = asyncio.create_task(handled(rig.processor.pull, request))
        await settle()
        assert (len(rig.long_polls), request.fields, request.body) == (1, {}, b"")
        assert not request.remark
        put(rig.store, "T", b"late")
        assert (await pull).code == 0

    run(scene())


@pytest.mark.parametrize(
    ("access_key", "kept"), [("alice", {"AccessKey": "alice"}), ("x" * 256, {})]
)
def test_a_long_poll_keeps_only_what_can_be_an_account(
    run: Callable[..., Any],
    store: FakeStore | MessageStore,
    access_key: str,
    kept: dict[str, str],
) -> None:
    async def scene() -> None:
        rig = Rig(store=store)
        request = rig.request(sysFlag=SUBSCRIPTION | SUSPEND, AccessKey=access_key)
        pull = asyncio.create_task(handled(rig.processor.pull, request))
        await settle()
        assert (len(rig.long_polls), request.fields) == (1, kept)
        put(rig.store, "T", b"late")
        assert (await pull).code == 0

    run(scene())


def test_a_long_poll_returns_the_next_message(
    run: Callable[..., Any], store: FakeStore | MessageStore
) -> None:
    async def scene() -> None:
        rig = Rig(store=store)
        pull = asyncio.create_task(rig.pull(sysFlag=SUBSCRIPTION | SUSPEND))
        await settle()
        assert not pull.done()
        put(rig.store, "T", b"late")
        response = await pull
        assert (response.code, b"late" in response.body) == (0, True)
        assert len(rig.long_polls) == 0

    run(scene())


def test_a_long_poll_returns_at_its_deadline(
    run: Callable[..., Any], store: FakeStore | MessageStore
) -> None:
    async def scene() -> None:
        rig = Rig(store=store)
        async with rig.long_polls.running():
            flags = SUBSCRIPTION | SUSPEND | COMMIT
            pull = asyncio.create_task(rig.pull(sysFlag=flags, commitOffset=3))
            await settle()
            rig.offsets.table.clear()
            rig.clock.advance(14_999)
            await settle()
            assert not pull.done()
            rig.clock.advance(500)
            response = await pull
        assert (response.code, response.fields.keys()) == (19, HEADER)
        assert rig.offsets.table == {}

    run(scene())


@pytest.mark.parametrize(("offset", "flags"), [(0, SUBSCRIPTION), (9, SUBSCRIPTION | SUSPEND)])
def test_pulls_without_a_long_poll(run: Callable[..., Any], offset: int, flags: int) -> None:
    response = run(Rig().pull(queueOffset=offset, sysFlag=flags))
    assert response.code == (19 if offset == 0 else 21)


def test_short_polling_holds_for_a_second(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig = Rig(long_polling_enable=False)
        async with rig.long_polls.running():
            pull = asyncio.create_task(rig.pull(sysFlag=SUBSCRIPTION | SUSPEND))
            await settle()
            rig.clock.advance(1_250)
            assert (await pull).code == 19

    run(scene())


def test_a_closed_connection_gets_no_response(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig = Rig()
        pull = asyncio.create_task(rig.pull(sysFlag=SUBSCRIPTION | SUSPEND))
        await settle()
        rig.peer.close()
        assert await pull is None

    run(scene())


def test_a_pending_reset_is_returned_once(
    run: Callable[..., Any], store: FakeStore | MessageStore
) -> None:
    rig = Rig(store=store)
    put(rig.store, "T", b"one", b"two")
    rig.offsets.set_reset("G", "T", 0, 1)
    response = run(rig.pull())
    assert (response.code, response.remark) == (21, "OFFSET_RESET")
    assert response.fields["nextBeginOffset"] == "1"
    assert run(rig.pull()).code == 0
