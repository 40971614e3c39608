"""Responses with thousands of topics, groups or queues: other work runs between their rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.steps import ROWS_PER_TURN
from duemq.admin.consume_report import ConsumeReport
from duemq.registry import consumer_offsets
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq_common import json_dialect
from duemq_common.request import Request
from message_store.store import MessageStore
from tests.support.admin_broker import AdminBroker, admin_broker
from tests.support.work_per_turn import WorkPerTurn

COUNT = 3 * ROWS_PER_TURN


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AdminBroker]:
    with admin_broker(tmp_path) as broker:
        yield broker


def response_of(broker: AdminBroker, work: WorkPerTurn, code: int, **fields: str) -> dict[str, Any]:
    """Return the body of a response, during which work is counted."""
    response = asyncio.run(work.during(broker.handlers[code](Request(code, fields))))
    body: Any = json_dialect.loads(bytes(response.body).decode())
    assert isinstance(body, dict)
    return body


def add_topics(broker: AdminBroker, count: int) -> None:
    names = [f"T{number}" for number in range(count)]
    topics = [TopicConfig(name=name, read_queues=1, write_queues=1, perm=6) for name in names]
    asyncio.run(broker.topics.ensure_all(topics))


def test_all_topics(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    add_topics(broker, COUNT)
    work = WorkPerTurn(monkeypatch, TopicConfig, "to_json")
    table = response_of(broker, work, 21)
    assert len(table["topicConfigTable"]) >= COUNT
    assert table["topicConfigTable"]["T7"] == broker.topics.find("T7").to_json()
    assert work.most <= ROWS_PER_TURN


def test_all_groups(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"g{number}" for number in range(COUNT)]
    asyncio.run(broker.groups.update([GroupConfig(name=name) for name in names]))
    work = WorkPerTurn(monkeypatch, GroupConfig, "to_json")
    table = response_of(broker, work, 201)
    assert set(names) <= table["subscriptionGroupTable"].keys()
    assert work.most <= ROWS_PER_TURN


def test_all_offsets(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = consumer_offsets.PAIRS_PER_TURN
    for number in range(3 * pairs):
        broker.offsets.commit(f"g{number}", "T", 0, number)
    work = WorkPerTurn(monkeypatch, broker.offsets._rows, "encode", lambda count: count)
    table = response_of(broker, work, 43)
    assert {int(queue): offset for queue, offset in table["offsetTable"]["T@g7"].items()} == {0: 7}
    assert work.total == 3 * pairs
    assert work.most <= pairs


@pytest.mark.parametrize(
    ("code", "fields", "member"),
    [
        (202, {"topic": "wide"}, "offsetTable"),
        (208, {"consumerGroup": "g", "topic": "wide"}, "offsetTable"),
        (303, {"group": "g", "topic": "wide"}, "consumeTimeSpanSet"),
    ],
)
def test_queues_of_a_topic(
    broker: AdminBroker,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    fields: dict[str, str],
    member: str,
) -> None:
    broker.create("wide", COUNT)
    work = WorkPerTurn(monkeypatch, MessageStore, "readable_bounds")
    response = asyncio.run(work.during(broker.handlers[code](Request(code, fields))))
    assert member.encode() in response.body
    assert work.total >= COUNT
    assert work.most <= ROWS_PER_TURN


def test_topics_of_a_group(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    add_topics(broker, COUNT)
    for number in range(COUNT):
        broker.offsets.commit("g", f"T{number}", 0, 0)
    work = WorkPerTurn(monkeypatch, MessageStore, "readable_bounds")
    asyncio.run(work.during(broker.handlers[208](Request(208, {"consumerGroup": "g"}))))
    assert work.total == COUNT
    assert work.most <= ROWS_PER_TURN


def report_of(broker: AdminBroker) -> ConsumeReport:
    return ConsumeReport(
        broker.store,
        broker.topics,
        broker.groups,
        broker.offsets,
        broker.clients,
        broker.group_admin.consume_stats,
        "127.0.0.1:10911",
    )


def test_lag_of_all_groups(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    add_topics(broker, COUNT)
    asyncio.run(broker.groups.update([GroupConfig(name="g")]))
    for number in range(COUNT):
        broker.offsets.commit("g", f"T{number}", 0, 0)
    report = report_of(broker)
    work = WorkPerTurn(monkeypatch, MessageStore, "readable_bounds")
    response = asyncio.run(work.during(report.all_groups(Request(317, {"isOrder": "false"}))))
    assert bytes(response.body).count(b'"offsetTable"') == COUNT
    assert work.most <= ROWS_PER_TURN + 1  # a report, and the lags of some topics


def test_lag_of_all_groups_in_topics_with_many_queues(
    broker: AdminBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"g{number}" for number in range(COUNT)]
    asyncio.run(broker.groups.update([GroupConfig(name=name) for name in names]))
    for name in ("T", "U"):
        broker.create(name, COUNT)
        broker.offsets.commit("g7", name, 0, 0)
    report = report_of(broker)
    work = WorkPerTurn(monkeypatch, MessageStore, "readable_bounds")
    groups = WorkPerTurn(monkeypatch, broker.clients, "topics_of")
    request = Request(317, {"isOrder": "false"})
    response = asyncio.run(work.during(groups.during(report.all_groups(request))))
    assert list(json_dialect.loads(bytes(response.body).decode())["consumeStatsList"][0]) == ["g7"]
    assert groups.total >= COUNT
    assert groups.most <= ROWS_PER_TURN
    assert work.total >= 4 * COUNT
    assert work.most <= ROWS_PER_TURN


def test_corrections_of_many_groups(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(COUNT):
        broker.offsets.commit(f"g{number}", "T", 0, number)
    work = WorkPerTurn(monkeypatch, broker.offsets, "of_pair")
    request = Request(308, {"filterGroups": "g0", "compareGroup": "g7", "topic": "T"})
    response = asyncio.run(work.during(report_of(broker).corrections(request)))
    assert bytes(response.body) == b'{"correctionOffsets":{0:1}}'
    assert (work.total, work.most) == (COUNT, 1)
