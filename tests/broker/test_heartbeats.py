import json

import pytest

from broker.heartbeats import parse_heartbeat
from message_store.errors import RequestError

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


def test_java_go_and_cpp_say_the_same():
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
def test_missing_sets_are_empty(body):
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
def test_a_malformed_body_is_answered_with_system_error(body):
    with pytest.raises(RequestError) as refusal:
        parse_heartbeat(body)
    assert refusal.value.code == 1
