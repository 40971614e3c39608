"""Kinds of records, and the properties of their delivered messages."""

from __future__ import annotations

import pytest

from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.properties import encode_properties
from message_store.log.record import Record, decode_record
from tests.support.encoded_records import encode_record
from timer_store.dequeue.original_properties import delivered_text, kind_of
from timer_store.layout import FROM_LEVEL, FROM_NOTHING, FROM_ROUTE, FROM_TIMER


def record_of(topic: str, queue_id: int, **properties: str) -> Record:
    data = encode_record(
        topic=topic,
        queue_id=queue_id,
        body=b"m",
        property_text=encode_properties(properties),
        queue_offset=0,
        phys_offset=0,
        born_ms=0,
        born_host=(bytes(4), 0),
        store_ms=0,
        store_host=(bytes(4), 0),
    )
    return decode_record(memoryview(data), 0)


ROUTED = {"DELAY": "3", "DUEMQ_DUE_MS": "99"}


@pytest.mark.parametrize(
    ("topic", "queue_id", "properties", "kind"),
    [
        (TIMER_TOPIC, 0, {"TIMER_OUT_MS": "5"}, FROM_TIMER),
        (TIMER_TOPIC, 1, {"TIMER_OUT_MS": "5"}, FROM_NOTHING),
        ("Orders", 0, {"TIMER_OUT_MS": "5"}, FROM_NOTHING),
        (SCHEDULE_TOPIC, 2, {"DELAY": "3"}, FROM_LEVEL),
        (TIMER_TOPIC, 0, ROUTED, FROM_ROUTE),
        (TIMER_TOPIC, 0, {"DELAY": "3"}, FROM_TIMER),
        (TIMER_TOPIC, 0, {"DUEMQ_DUE_MS": "99"}, FROM_TIMER),
        (TIMER_TOPIC, 0, ROUTED | {"TIMER_DELIVER_MS": "7"}, FROM_TIMER),
    ],
)
def test_the_kind_of_a_record(
    topic: str, queue_id: int, properties: dict[str, str], kind: int
) -> None:
    assert kind_of(record_of(topic, queue_id, **properties)) == kind


def test_a_routed_message_is_delivered_as_by_the_level_service() -> None:
    record = record_of(TIMER_TOPIC, 0, **ROUTED, TIMER_OUT_MS="5", TIMER_ENQUEUE_MS="4", KEYS="k")
    assert delivered_text(record, FROM_ROUTE) == encode_properties({"DELAY": "3", "KEYS": "k"})
    assert b"TIMER_OUT_MS" in delivered_text(record, FROM_TIMER)
    assert b"TIMER_ENQUEUE_MS" not in delivered_text(record, FROM_TIMER)
