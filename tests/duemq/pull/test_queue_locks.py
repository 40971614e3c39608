from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from duemq.net.memory import MemoryBudget
from duemq.net.wire_json import QueueKey
from duemq.pull.queue_locks import (
    LOCK_BYTES,
    LOCK_EXPIRES_MS,
    NAME_CHARS_MAX,
    QUEUES_PER_REQUEST_MAX,
    LockProcessor,
    LockTable,
)
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

Q0, Q1 = QueueKey("b", 0, "T"), QueueKey("b", 1, "T")


@pytest.mark.parametrize(
    ("client", "later_ms", "granted"),
    [
        ("a", 0, True),
        ("b", 0, False),
        ("b", LOCK_EXPIRES_MS, False),
        ("b", LOCK_EXPIRES_MS + 1, True),
        ("a", LOCK_EXPIRES_MS + 1, True),
    ],
)
def test_the_owner_renews_a_lock_and_another_client_gets_it_after_expiry(
    client: str, later_ms: int, granted: bool
) -> None:
    table = LockTable()
    assert table.lock("G", "a", [Q0], 1_000) == [Q0]
    assert table.lock("G", client, [Q0], 1_000 + later_ms) == ([Q0] if granted else [])


def test_groups_do_not_share_locks() -> None:
    table = LockTable()
    table.lock("G", "a", [Q0], 0)
    assert table.lock("H", "b", [Q0], 0) == [Q0]


def test_unlock_by_another_client_has_no_effect() -> None:
    table = LockTable()
    table.lock("G", "a", [Q0, Q1], 0)
    table.unlock("G", "b", [Q0])
    assert table.lock("G", "b", [Q0, Q1], 0) == []
    table.unlock("G", "a", [Q0])
    assert table.lock("G", "b", [Q0, Q1], 0) == [Q0]
    assert table.any_alive("G", LOCK_EXPIRES_MS)
    assert not table.any_alive("G", LOCK_EXPIRES_MS + 1)
    assert not table.any_alive("H", 0)


def request(code: int, client: str) -> Request:
    queues = [Q0.to_json(), Q1.to_json()]
    body = {"clientId": client, "consumerGroup": "G", "onlyThisBroker": False, "mqSet": queues}
    return Request(code, {}, json.dumps(body).encode())


async def responses(*requests: Request) -> list[Response]:
    handlers = LockProcessor(LockTable(), FakeClock()).handlers()
    return [await handlers[r.code](r) for r in requests]  # type: ignore[misc]


def test_lock_and_unlock_requests(run: Callable[..., Any]) -> None:
    first, second, unlock, third = run(
        responses(request(41, "a"), request(41, "b"), request(42, "a"), request(41, "b"))
    )
    assert json.loads(first.body)["lockOKMQSet"] == [Q0.to_json(), Q1.to_json()]
    assert json.loads(second.body) == {"lockOKMQSet": []}
    assert (unlock.code, unlock.body) == (0, b"")
    assert len(json.loads(third.body)["lockOKMQSet"]) == 2


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"mqSet":[{}]}', b'{"mqSet":3}'])
def test_a_malformed_body_is_refused(body: bytes, run: Callable[..., Any]) -> None:
    with pytest.raises(RequestError) as refusal:
        run(responses(Request(41, {}, body)))
    assert refusal.value.code == 1


@pytest.mark.finding("3S3")
def test_locks_count_in_the_memory_budget_and_expired_ones_make_room() -> None:
    memory = MemoryBudget(8 * LOCK_BYTES)
    table, queues = LockTable(memory), [QueueKey("b", number, "T") for number in range(10)]
    assert table.lock("G", "a", queues, 0) == queues[:6]
    assert table.lock("G", "a", queues[:6], LOCK_EXPIRES_MS) == queues[:6]
    assert table.lock("H", "b", queues[:1], LOCK_EXPIRES_MS) == []
    table.unlock("G", "a", queues[:2])
    assert table.lock("H", "b", queues[:1], LOCK_EXPIRES_MS) == queues[:1]
    assert table.lock("H", "b", queues, 3 * LOCK_EXPIRES_MS) == queues[:6]
    table.unlock("H", "b", queues)
    assert memory.used_bytes == 0


@pytest.mark.finding("3S7")
@pytest.mark.parametrize(
    ("queues", "name"), [(QUEUES_PER_REQUEST_MAX + 1, "T"), (1, "T" * (NAME_CHARS_MAX + 1))]
)
def test_a_lock_request_is_bounded(run: Callable[..., Any], queues: int, name: str) -> None:
    listed = [{"topic": name, "brokerName": "b", "queueId": n} for n in range(queues)]
    body = json.dumps({"consumerGroup": "G", "clientId": "a", "mqSet": listed}).encode()
    handler = LockProcessor(LockTable(), FakeClock()).handlers()[41]
    with pytest.raises(RequestError, match="malformed lock body"):
        run(handler(Request(41, {}, body)))
