"""librocketmq 1.0.1 in the Python package rocketmq 0.4.4: one test per feature."""

from __future__ import annotations

import pytest

from tests.interop.checks import (
    N,
    assert_accepted,
    assert_once,
    check_concurrent,
    check_level,
    check_long_poll,
    check_orderly,
    check_resume,
    check_retry,
    check_tags,
    check_timer,
    series,
)
from tests.interop.peers import LEVELS_MS
from tests.interop.session import Client, Event
from tests.support.server import Server
from tests.support.wait_until import until

WAIT_S = 120


def read_all(cpp: Client, topic: str, group: str) -> list[Event]:
    return cpp.events("pull", "message", topic=topic, group=group)


@pytest.mark.parametrize("mode", ["sync", "async", "ordered"])
def test_producer(cpp: Client, topic: str, group: str, mode: str) -> None:
    sent = cpp.events("produce", "sent", topic=topic, mode=mode, n=N, tags="A", keys="k")
    assert_accepted(sent, N)
    received = read_all(cpp, topic, group)
    assert_once(received, series(N))
    assert {m["msgId"] for m in received} == {s["msgId"] for s in sent}
    assert {m["tags"] for m in received} == {"A"}


@pytest.mark.parametrize("mode", ["oneway", "oneway-ordered"])
def test_producer_oneway(cpp: Client, topic: str, group: str, mode: str) -> None:
    cpp.run("produce", topic=topic, mode=mode, n=N)
    received = cpp.events("push-consume", "message", topic=topic, group=group, until=N)
    assert_once(received, series(N))


def test_producer_batch(cpp: Client, topic: str, group: str) -> None:
    """This client marks no batch: Apache also stores one as a single message that starts with 0."""
    (sent,) = cpp.events("produce", "sent", topic=topic, mode="batch", n=3)
    assert sent["status"] == "SEND_OK"
    assert [m["body"] for m in read_all(cpp, topic, group)] == [""]


def test_producer_compressed_body(cpp: Client, topic: str, group: str) -> None:
    cpp.run("produce", topic=topic, n=2, body_size=20_000)
    received = read_all(cpp, topic, group)
    assert_once(received, series(2))
    assert {len(m["body"]) for m in received} == {20_000}


def test_producer_creates_topic(cpp: Client, name: str, group: str) -> None:
    assert_accepted(cpp.events("produce", "sent", topic=name, n=4), 4)
    assert_once(read_all(cpp, name, group), series(4))


def test_producer_level(cpp: Client, topic: str, group: str) -> None:
    check_level(cpp, topic, group)


def test_producer_timer_property(server: Server, cpp: Client, topic: str, group: str) -> None:
    check_timer(server, cpp, topic, group)


def test_push_consumer_concurrent(cpp: Client, topic: str, group: str) -> None:
    check_concurrent(cpp, topic, group)


def test_push_consumer_long_poll(cpp: Client, topic: str, group: str) -> None:
    check_long_poll(cpp, topic, group)


def test_push_consumer_orderly(cpp: Client, topic: str, group: str) -> None:
    check_orderly(cpp, topic, group)


def test_push_consumer_broadcast(cpp: Client, topic: str, group: str) -> None:
    """In this mode the client begins at the end of each queue, so both are started first.

    They start one after the other: two that create the folder of their offsets at the same time
    fail.
    """
    options = {"topic": topic, "group": group, "mode": "broadcast", "wait_ms": 3_000 * WAIT_S}
    both = []
    for _ in range(2):
        both.append(cpp.start("push-consume", **options))
        both[-1].wait_for("started")

    def all_queues_are_read() -> bool:
        cpp.run("produce", topic=topic, mode="ordered", shards=4, n=4, body="probe")
        return all(len({m["queueId"] for m in c.named("message")}) == 4 for c in both)

    until(all_queues_are_read, seconds=WAIT_S, what="two broadcast consumers at work", poll_s=0.2)
    cpp.run("produce", topic=topic, n=4, body="final")

    def final(consumer_index: int) -> list[Event]:
        messages = both[consumer_index].named("message")
        return [m for m in messages if m["body"].startswith("final")]

    for i in range(2):
        until(lambda i=i: len(final(i)) >= 4, seconds=WAIT_S, what="final messages")  # type: ignore[misc]
    for consumer in both:
        consumer.stop()
    for i in range(2):
        assert_once(final(i), series(4, "final"))


def test_push_consumer_tag_filter(cpp: Client, topic: str, group: str) -> None:
    check_tags(cpp, topic, group)


def test_push_consumer_retry(cpp: Client, topic: str, group: str) -> None:
    """This client leaves the level to the broker: 3 for a first retry."""
    check_retry(cpp, topic, group, delay_ms=LEVELS_MS[2])


def test_push_consumer_resumes(cpp: Client, topic: str, group: str) -> None:
    check_resume(cpp, topic, group)


def test_pull_consumer(cpp: Client, topic: str, group: str) -> None:
    cpp.run("produce", topic=topic, n=N)
    assert_once(read_all(cpp, topic, group), series(N))
