from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.messages.queries import QueryProcessor
from duemq.registry.clients import ClientTable
from duemq.registry.heartbeats import ConsumerEntry, Heartbeat
from duemq.registry.subscriptions import parse_expression
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.store import MessageStore
from tests.support.fakes import FakePeer
from tests.support.stores import open_store, put_one

KEYS = {"KEYS": "a b", "UNIQ_KEY": "u"}


class FakeIndex:
    """Replacement of `query_keys` in a real store; returns the offsets that a test sets."""

    def __init__(self, store: MessageStore) -> None:
        self.store, self.found, self.requested = store, list[Any](), list[Any]()
        store.query_keys = self.query  # type: ignore[assignment]

    def query(self, *question: str | int) -> list[int]:
        self.requested.append(question)
        return self.found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as store:
        yield store


async def call(
    store: MessageStore, code: int, clients: ClientTable | None = None, **fields: str | int
) -> Response | None:
    processor = QueryProcessor(store, clients or ClientTable(), lambda: (7, 8))
    found = {name: str(value) for name, value in fields.items()}
    return await processor.handlers()[code](Request(code, found))


def by_key(store: MessageStore, **changes: int | str) -> Coroutine[Any, Any, Any]:
    fields = {"topic": "T", "key": "b", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 99}
    return call(store, 12, **(fields | changes))


@pytest.mark.finding("3C4")
@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 9),
        ({"maxNum": 64}, 64),
        ({"maxNum": 100_000}, 64),
        ({"maxNum": 0}, 1),
        ({"_UNIQUE_KEY_QUERY": "true"}, 32),
        ({"_UNIQUE_KEY_QUERY": "false"}, 9),
    ],
)
def test_count_of_a_key_query(
    run: Callable[..., Any], store: MessageStore, changes: dict[str, int | str], count: int
) -> None:
    index = FakeIndex(store)
    run(by_key(store, **changes))
    assert index.requested == [("T", "b", count, 0, 99)]


def test_messages_with_the_key_are_returned_in_index_order(
    run: Callable[..., Any], store: MessageStore
) -> None:
    index = FakeIndex(store)
    rows = [put_one(store, "T", body=body, properties=KEYS) for body in (b"old", b"new")]
    other_key = put_one(store, "T", properties={"KEYS": "c"})
    other_topic = put_one(store, "U", properties=KEYS)
    offsets = [int(r["phys_offset"]) for r in (other_topic, other_key, *reversed(rows))]
    index.found = [*offsets, 999_999]
    response = run(by_key(store))
    assert response.code == 0
    assert response.fields == {"indexLastUpdateTimestamp": "7", "indexLastUpdatePhyoffset": "8"}
    size = int(rows[0]["record_size"])
    view = store.record_bytes
    assert response.body == bytes(view(offsets[2], size)) + bytes(view(offsets[3], size))
    assert run(by_key(store, key="u", _UNIQUE_KEY_QUERY="true")).body == response.body


def test_a_query_without_matches_returns_22(run: Callable[..., Any], store: MessageStore) -> None:
    FakeIndex(store)
    response = run(by_key(store))
    assert (response.code, response.body) == (22, b"")


@pytest.mark.parametrize(("shift", "code"), [(0, 0), (1, 1), (-1, 1), (10_000, 1)])
def test_a_log_offset_must_be_the_start_of_a_record(
    run: Callable[..., Any], store: MessageStore, shift: int, code: int
) -> None:
    put_one(store, "T")
    row = put_one(store, "T", body=b"wanted")
    response = run(call(store, 33, offset=int(row["phys_offset"]) + shift))
    assert response.code == code
    assert (b"wanted" in response.body) is (code == 0)


@pytest.mark.parametrize(("topic", "code"), [("T", 0), (" ", 0), ("U", 16), ("%RETRY%T", 16)])
def test_a_message_by_log_offset_is_of_the_named_topic(
    run: Callable[..., Any], store: MessageStore, topic: str, code: int
) -> None:
    row = put_one(store, "T", body=b"wanted")
    requested = call(store, 33, offset=int(row["phys_offset"]), topic=topic)
    if code:
        with pytest.raises(RequestError) as refused:
            run(requested)
        assert refused.value.code == code
    else:
        assert b"wanted" in run(requested).body


@pytest.mark.finding("D5")
def test_queue_units_are_returned_with_the_groups_subscription(
    run: Callable[..., Any], store: MessageStore
) -> None:
    """`eval` is false: Apache evaluates only units with an extension."""
    clients = ClientTable()
    reported = (parse_expression("T", "a"),)
    entry = ConsumerEntry("G", "CONSUME_PASSIVELY", "CLUSTERING", "x", reported)
    clients.heartbeat(
        Heartbeat("c", (), (entry,)), FakePeer(), language="JAVA", version=1, now_ms=0
    )
    for tag in "ab":
        put_one(store, "T", properties={"TAGS": tag})
    fields = {"topic": "T", "queueId": 0, "index": 0, "count": 5}
    body = json.loads(run(call(store, 321, clients, consumerGroup="G", **fields)).body)
    assert [unit["eval"] for unit in body["queueData"]] == [False, False]
    assert body["filterData"] == "null"
    offline = json.loads(run(call(store, 321, clients, consumerGroup="H", **fields)).body)
    assert offline["filterData"] == "H@T is not online!"
    assert [unit["tagsCode"] for unit in body["queueData"]] == [97, 98]
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 2)
    assert body["subscriptionData"]["subString"] == "a"
    assert run(call(store, 321, **(fields | {"topic": "none"}))).code == 1


def test_queue_units_are_returned_with_the_groups_filter(
    run: Callable[..., Any], store: MessageStore
) -> None:
    clients = ClientTable()
    entry = ConsumerEntry(
        "G", "CONSUME_PASSIVELY", "CLUSTERING", "x", (parse_expression("T", "a > 1", "SQL92", 7),)
    )
    clients.heartbeat(
        Heartbeat("c", (), (entry,)), FakePeer(), language="JAVA", version=1, now_ms=0
    )
    put_one(store, "T")
    fields = {"topic": "T", "queueId": 0, "index": 0, "count": 5, "consumerGroup": "G"}
    body = json.loads(run(call(store, 321, clients, **fields)).body)
    assert body["subscriptionData"]["expressionType"] == "SQL92"
    shown = json.loads(body["filterData"])
    assert (shown["expression"], shown["clientVersion"]) == ("a > 1", 7)
