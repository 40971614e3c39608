"""Schedules that Java's producer creates, and their occurrences at Java's consumer."""

from __future__ import annotations

import zlib

import pytest

from tests.interop.checks import assert_accepted
from tests.interop.peers import peer_name
from tests.interop.session import ClientFailed, ClientSession

pytestmark = pytest.mark.skipif(
    peer_name() != "duemq", reason="Apache's brokers have no recurring schedules"
)
EVERY_MS = 1_000


def properties(**values: str) -> str:
    """Return the option of properties whose names begin with DUEMQ_SCHEDULE_."""
    return "|".join(f"DUEMQ_SCHEDULE_{name}={text}" for name, text in values.items())


def name_of(topic: str) -> str:
    """Return the name of a schedule of the topic of a test."""
    return f"s{zlib.crc32(topic.encode())}"


def test_a_java_client_creates_a_schedule(java: ClientSession, topic: str, group: str) -> None:
    name = name_of(topic)
    request = properties(NAME=name, CRON="* * * * * *", ZONE="Europe/Berlin")
    for _ in range(2):  # the second one changes nothing
        sent = java.events("produce", "sent", topic=topic, n=1, property=request)
        assert_accepted(sent, 1)
    received = java.events("push-consume", "message", topic=topic, group=group, until=3)
    times = sorted(int(each["properties"]["DUEMQ_SCHEDULE_TIME"]) for each in received)
    assert times == list(range(times[0], times[0] + len(times) * EVERY_MS, EVERY_MS))
    for each in received:
        assert each["body"] == "body-0"
        assert each["properties"]["DUEMQ_SCHEDULE"] == name
        assert each["msgId"] == f"{name}@{each['properties']['DUEMQ_SCHEDULE_TIME']}"
    with pytest.raises(ClientFailed, match="exists with another definition"):
        java.run("produce", topic=topic, n=1, body="other", property=request)


def test_a_compressed_body_is_delivered_by_each_occurrence(
    java_with_timers: ClientSession, topic: str, group: str
) -> None:
    request = properties(NAME=name_of(topic), EVERY_MS=str(EVERY_MS))
    java_with_timers.run("produce", topic=topic, n=1, property=request, body_size=20_000)
    received = java_with_timers.events("push-consume", "message", topic=topic, group=group, until=2)
    assert {len(each["body"]) for each in received} == {20_000}


@pytest.mark.parametrize(
    ("request_text", "remark"),
    [
        (properties(NAME="a", CRON="0 9 * *"), "the cron expression '0 9 \\* \\*' is invalid"),
        (properties(NAME="a", CRON="0 9 * * *", ZONE="X/Y"), "there is no time zone 'X/Y'"),
        (properties(TIME="1"), "the property DUEMQ_SCHEDULE_TIME is set by the broker"),
    ],
    ids=["expression", "zone", "forged"],
)
def test_a_java_client_gets_the_reason_of_a_refusal(
    java_with_timers: ClientSession, topic: str, request_text: str, remark: str
) -> None:
    with pytest.raises(ClientFailed, match=remark):
        java_with_timers.run("produce", topic=topic, n=1, property=request_text)
