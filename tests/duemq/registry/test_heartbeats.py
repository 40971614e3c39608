from __future__ import annotations

import json
from typing import Any

import pytest

from duemq.registry.heartbeats import HeartbeatLimits, parse_heartbeat
from duemq_common.errors import RequestError

JAVA = {
    "clientID": "10.0.0.9@4711#123",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [
        {
            "groupName": "G",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [
                {
                    "classFilterMode": False,
                    "topic": "T",
                    "subString": "a||b",
                    "tagsSet": ["a", "b"],
                    "codeSet": [97, 98],
                    "subVersion": 1700000000000,
                    "expressionType": "TAG",
                }
            ],
        }
    ],
    "heartbeatFingerprint": 0,
    "withoutSub": False,
}
CPP = {
    "clientID": "c",
    "producerDataSet": [],
    "consumerDataSet": [
        {
            "groupName": "G",
            "consumeType": 1,
            "messageModel": 1,
            "consumeFromWhere": 4,
            "subscriptionDataSet": [
                {"topic": "T", "subString": "a||b", "subVersion": "1700000000000"}
            ],
        }
    ],
}


def test_java_go_and_cpp_agree() -> None:
    java, cpp = (parse_heartbeat(json.dumps(body).encode()) for body in (JAVA, CPP))
    assert java.client_id == "10.0.0.9@4711#123"
    assert java.producers == ("P",)
    assert java.consumers[0].subscriptions == cpp.consumers[0].subscriptions
    assert java.consumers[0].subscriptions[0].hashes.tolist() == [97, 98]
    assert cpp.consumers[0].consume_type == "CONSUME_PASSIVELY"
    assert cpp.consumers[0].message_model == "CLUSTERING"
    assert cpp.consumers[0].from_where == "CONSUME_FROM_FIRST_OFFSET"


@pytest.mark.parametrize(
    "body",
    [
        {"clientID": "c"},
        {"clientID": "c", "producerDataSet": None, "consumerDataSet": None},
        {"clientID": "c", "producerDataSet": [{}], "consumerDataSet": [{}], "new": [1]},
    ],
)
def test_missing_sets_are_empty(body: dict[str, str | list[int | dict[Any, Any]] | None]) -> None:
    heartbeat = parse_heartbeat(json.dumps(body).encode())
    assert (heartbeat.producers, heartbeat.consumers) == ((), ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"clientID":null}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[1]}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G",'
        b'"subscriptionDataSet":[{"topic":"T","subVersion":"x"}]}]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_malformed_body_is_answered_with_system_error(body: bytes) -> None:
    with pytest.raises(RequestError) as refusal:
        parse_heartbeat(body)
    assert refusal.value.code == 1


def reported(groups: int = 1, subscriptions: int = 0, **changes: object) -> bytes:
    wanted = [{"topic": f"t{n}", "subString": "*"} for n in range(subscriptions)]
    entry = {"subscriptionDataSet": wanted}
    consumers = [{"groupName": f"g{n}", **entry} for n in range(groups)]
    return json.dumps({"clientID": "c", "consumerDataSet": consumers} | changes).encode()


def subscribed(**subscription: str) -> dict[str, object]:
    return {"groupName": "g", "subscriptionDataSet": [subscription]}


@pytest.mark.finding("E8")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (reported(4), "clientGroupsMax=3"),
        (reported(2, producerDataSet=[{"groupName": "p"}] * 2), "clientGroupsMax=3"),
        (reported(2, 6), "heartbeatSubscriptionsMax=10"),
        (reported(clientID="c" * 1_025), "clientID has 1025 characters"),
        (reported(clientID="a\nINJECTED"), "control characters"),
        (reported(clientID="a\x7f"), "control characters"),
        (reported(consumerDataSet=[{"groupName": "g\r"}]), "control characters"),
        (reported(producerDataSet=[{"groupName": "g" * 600}]), "600 characters"),
        (reported(consumerDataSet=[subscribed(topic="t\n")]), "control characters"),
        (reported(consumerDataSet=[subscribed(topic="t", subString="a" * 70_000)]), "expression"),
    ],
)
def test_a_heartbeat_that_names_too_much_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        parse_heartbeat(body, HeartbeatLimits(groups=3, subscriptions=10))
    assert refused.value.remark.isprintable()
    assert (
        parse_heartbeat(reported(3, 3), HeartbeatLimits(groups=3, subscriptions=10)).client_id
        == "c"
    )
