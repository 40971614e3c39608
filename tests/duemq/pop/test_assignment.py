"""Rebalance by the broker, and request modes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from duemq.configuration.config import BrokerConfig
from duemq.pop.allocation import AssignedQueue
from duemq.pop.assignment import AssignmentProcessor
from duemq.pop.request_modes import RequestModes
from duemq.registry.managers import Identity
from duemq.registry.topic_routes import BrokerQueues
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.duemq.registry.test_topic_routes import topic
from tests.support.running_broker import BrokerClient, running, small

QUERY = {
    "topic": "T",
    "consumerGroup": "g",
    "clientId": "m1",
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}
US = Identity(broker_name="a", cluster_name="C", broker_id=0, host=(bytes(4), 1))
QUEUES = [AssignedQueue("T", broker, n) for broker in ("a", "b") for n in range(2)]


class NamedTable:
    """Fake of the tables of topics, groups and members."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find(self, name: str) -> object | None:
        return name if name in self._names else None

    find_or_create = find

    def members(self, group: str) -> list[str]:
        return ["m1", "m2", "m3"] if group == "g" else []


class FakeRoutes:
    """Fake of the routes: topic T has two queues on each of two brokers."""

    async def find(self, topic: str, own: str = "") -> list[BrokerQueues]:
        found = [BrokerQueues(name, f"{name}:1", "", 2, 2, 6) for name in "ab"]
        if topic == "T":
            found.append(BrokerQueues("c", "c:1", "", 9, 9, 2))
        return found if topic in ("T", "%RETRY%g") else []


def make_processor(tmp_path: Path, **config: Any) -> AssignmentProcessor:
    modes = RequestModes.loaded(lambda name: tmp_path / name)
    topics, groups = NamedTable("T", "%RETRY%g"), NamedTable("g")
    made = BrokerConfig(**config)
    return AssignmentProcessor(topics, groups, groups, FakeRoutes(), US, modes, lambda: made)


def call(processor: AssignmentProcessor, code: int, **body: object) -> Response:
    request = Request(code, {}, json.dumps(body).encode())
    response = asyncio.run(processor.handlers()[code](request))  # type: ignore[var-annotated]
    assert isinstance(response, Response)
    return response


def assigned(
    processor: AssignmentProcessor, **changes: object
) -> list[tuple[str, int, str]] | None:
    response = json.loads(bytes(call(processor, 400, **(QUERY | changes)).body))
    found = response.get("messageQueueAssignments")
    if found is None:
        return None
    named = [(each["messageQueue"], each["mode"]) for each in found]
    return [(queue["brokerName"], queue["queueId"], mode) for queue, mode in named]


@pytest.mark.finding("D6")
def test_members_share_the_queues_of_all_brokers(tmp_path: Path) -> None:
    processor = make_processor(tmp_path)
    assert assigned(processor) == [("a", 0, "PULL"), ("a", 1, "PULL")]
    assert assigned(processor, clientId="m3") == [("b", 1, "PULL")]
    assert assigned(processor, clientId="unknown") == []
    assert assigned(processor, messageModel="BROADCASTING") == [
        (queue.broker_name, queue.queue_id, "PULL") for queue in QUEUES
    ]


@pytest.mark.parametrize(
    "changes",
    [{"strategyName": "NONE"}, {"topic": "no such"}, {"consumerGroup": "h"}, {"clientId": " "}],
)
def test_a_response_without_a_list_keeps_the_clients_queues(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    assert assigned(make_processor(tmp_path), **changes) is None


def test_a_group_pops_after_its_mode_is_set(tmp_path: Path) -> None:
    processor = make_processor(tmp_path)
    response = call(processor, 401, topic="T", consumerGroup="g", mode="POP", popShareQueueNum=1)
    assert response == Response()
    assert assigned(processor) == [("a", 0, "POP"), ("a", 1, "POP"), ("b", 0, "POP")]
    assert assigned(processor, topic="%RETRY%g") == [("a", 0, "PULL"), ("a", 1, "PULL")]
    call(processor, 401, topic="T", consumerGroup="g", mode="POP", popShareQueueNum=0)
    assert assigned(processor, clientId="unknown") == [("a", -1, "POP"), ("b", -1, "POP")]
    modes = json.loads(bytes(call(processor, 402).body))
    assert modes["messageRequestModeMap"]["T"]["g"]["mode"] == "POP"


def test_modes_without_a_setting(tmp_path: Path) -> None:
    processor = make_processor(tmp_path, default_request_mode="POP", default_shared_queues=1)
    assert assigned(processor) == [("a", 0, "POP"), ("a", 1, "POP"), ("b", 0, "POP")]
    assert assigned(processor, topic="%RETRY%g", clientId="m3") == [("b", 1, "PULL")]
    everything = make_processor(tmp_path, server_load_balancer=False)
    assert len(assigned(everything) or []) == len(QUEUES)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "%RETRY%g"}, 16),
        ({"topic": "no such"}, 17),
        ({"consumerGroup": "h"}, 26),
        ({"mode": "PUSH"}, 29),
        ({"topic": ""}, 29),
    ],
)
def test_invalid_modes_are_refused(tmp_path: Path, changes: dict[str, object], code: int) -> None:
    body = {"topic": "T", "consumerGroup": "g", "mode": "POP"} | changes
    with pytest.raises(RequestError) as refused:
        call(make_processor(tmp_path), 401, **body)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "body", [b"", b"5", b'{"topic":5}', json.dumps(QUERY | {"messageModel": "X"}).encode()]
)
def test_malformed_requests_are_refused(tmp_path: Path, body: bytes) -> None:
    processor = make_processor(tmp_path)
    with pytest.raises(RequestError) as refused:
        asyncio.run(processor.assign(Request(400, {}, body)))
    assert refused.value.code == 29


def test_a_mode_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def main(*, sets: bool) -> list[Any]:
        async with running(small(tmp_path)) as (_, client):
            if sets:
                await prepare(client)
            return await of_group(client)

    assert asyncio.run(main(sets=True)) == asyncio.run(main(sets=False)) == ["POP"]


async def prepare(client: BrokerClient) -> None:
    await client.call(17, topic("T", 1))
    body = {"topic": "T", "consumerGroup": "g", "mode": "POP"}
    assert (await client.call(401, {}, json.dumps(body).encode())).code == 0


async def of_group(client: BrokerClient) -> list[Any]:
    """Return the modes of the queues of T for g, which pops without sharing."""
    beat = {
        "clientID": "m1",
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [],
            }
        ],
        "producerDataSet": [],
    }
    assert (await client.call(34, {}, json.dumps(beat).encode())).code == 0
    response = await client.call(400, {}, json.dumps(QUERY).encode())
    found = json.loads(bytes(response.body))["messageQueueAssignments"]
    return [each["mode"] for each in found]
