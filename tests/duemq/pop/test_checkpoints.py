"""Records of the revive topic: Apache's bodies, and malformed bodies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duemq.pop.checkpoints import (
    Acknowledgement,
    PopCheckpoint,
    RecordError,
    parse_revive_record,
)
from message_store.log.properties import encode_properties
from message_store.log.record import Record, decode_record
from tests.support.encoded_records import encode_record

CHECKPOINT = PopCheckpoint("T", "g", 2, 17, 1_000_000, 60_000, (17, 19, 20), "broker-a")
ACK = Acknowledgement("T", "g", 2, 17, 1_000_000, (19,), "broker-a", 1_060_000)
BATCH_ACK = Acknowledgement("T", "g", 2, 17, 1_000_000, (17, 20), "broker-a", 1_060_000)
APACHES = {  # written by the classes of Apache 5.3.3
    "ck": '{"bm":0,"bn":"broker-a","c":"g","d":[0,2,3],"it":60000,"n":3,"pt":1000000,"q":2,'
    '"reviveTime":1060000,"ro":0,"so":17,"t":"T"}',
    "ack": '{"ao":19,"bn":"broker-a","c":"g","pt":1000000,"q":2,"so":17,"t":"T"}',
    "bAck": '{"ao":-1,"aol":[17,20],"bn":"broker-a","c":"g","pt":1000000,"q":2,"so":17,"t":"T"}',
}
OURS: dict[str, PopCheckpoint | Acknowledgement] = {"ck": CHECKPOINT, "ack": ACK, "bAck": BATCH_ACK}


def record_of(body: bytes, **properties: str) -> Record:
    data = encode_record(
        topic="rmq_sys_REVIVE_LOG_c",
        queue_id=0,
        body=body,
        property_text=encode_properties(properties),
        queue_offset=0,
        phys_offset=0,
        born_ms=0,
        born_host=(bytes(4), 0),
        store_ms=1_000_000,
        store_host=(bytes(4), 0),
    )
    return decode_record(memoryview(data), 0)


@pytest.mark.parametrize("tag", APACHES)
def test_bodies_equal_apaches(tag: str) -> None:
    assert OURS[tag].body().decode() == APACHES[tag]
    due_ms = "1059000" if tag == "ck" else "1060000"
    properties = OURS[tag].properties()
    assert (properties["TAGS"], properties["TIMER_DELIVER_MS"]) == (tag, due_ms)
    assert parse_revive_record(record_of(APACHES[tag].encode(), **properties), "x") == OURS[tag]


def test_a_suspended_checkpoint_is_that_of_apache_5_5() -> None:
    suspended = replace(CHECKPOINT, suspended=True)
    body = APACHES["ck"].replace('"so":17,', '"so":17,"sp":true,')
    assert suspended.body().decode() == body
    assert parse_revive_record(record_of(body.encode(), TAGS="ck"), "x") == suspended
    other = body.replace('"sp":true', '"sp":false')
    assert parse_revive_record(record_of(other.encode(), TAGS="ck"), "x") == CHECKPOINT


def test_a_checkpoint_without_bits_has_no_acknowledged_message() -> None:
    body = APACHES["ck"].replace('"bm":0,', "")
    assert parse_revive_record(record_of(body.encode(), TAGS="ck"), "x") == CHECKPOINT


def test_unique_keys_equal_apaches() -> None:
    keys = [OURS[tag].properties()["UNIQ_KEY"] for tag in APACHES]
    assert keys == [
        "T@2@17@g@1000000@broker-a@ck",
        "T@2@19@g@1000000@broker-a@ack",
        "T@2@-1@g@1000000@broker-a@ack",
    ]


def test_a_checkpoint_of_an_old_broker_has_neither_distances_nor_broker() -> None:
    body = b'{"bm":2,"c":"g","it":60000,"n":3,"pt":1000000,"q":2,"so":17,"t":"T"}'
    found = parse_revive_record(record_of(body, TAGS="ck"), "broker-a")
    assert isinstance(found, PopCheckpoint)
    assert found.offsets == (17, 18, 19)
    assert found.unacknowledged == [17, 19]
    assert found.broker_name == "broker-a"


def test_a_record_has_at_most_1_024_offsets() -> None:
    body = APACHES["bAck"].replace("[17,20]", str(list(range(1_024))))
    item = parse_revive_record(record_of(body.encode(), TAGS="bAck"), "b")
    assert isinstance(item, Acknowledgement)
    assert item.offsets == tuple(range(1_024))


WRONG = {
    "no tag": (APACHES["ck"], {}),
    "another tag": (APACHES["ck"], {"TAGS": "x"}),
    "no json": ("{", {"TAGS": "ck"}),
    "no object": ("[]", {"TAGS": "ack"}),
    "no names": ("{}", {"TAGS": "bAck"}),
    "text for a number": (APACHES["ck"].replace("17", '"17"'), {"TAGS": "ck"}),
    "number for a text": (APACHES["ack"].replace('"g"', "7"), {"TAGS": "ack"}),
    "distances": (APACHES["ck"].replace("[0,2,3]", '{"a":1}'), {"TAGS": "ck"}),
    "many": (
        APACHES["bAck"].replace("[17,20]", str(list(range(1_025)))),
        {"TAGS": "bAck"},
    ),
}


@pytest.mark.parametrize(("body", "properties"), WRONG.values(), ids=WRONG)
def test_records_of_another_form_are_refused(body: str, properties: dict[str, str]) -> None:
    with pytest.raises(RecordError):
        parse_revive_record(record_of(body.encode(), **properties), "b")
