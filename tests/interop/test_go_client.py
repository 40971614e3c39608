"""rocketmq-client-go 2.1.2: one test per feature."""

from __future__ import annotations

import pytest

from tests.interop.checks import (
    N,
    assert_accepted,
    assert_once,
    bodies,
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
from tests.interop.session import ClientSession, Event
from tests.support.server import Server


def read_all(go: ClientSession, topic: str, group: str, count: int = N) -> list[Event]:
    return go.events("pull", "message", topic=topic, group=group, until=count)


@pytest.mark.parametrize("mode", ["sync", "async", "ordered"])
def test_producer(go: ClientSession, topic: str, group: str, mode: str) -> None:
    sent = go.events("produce", "sent", topic=topic, mode=mode, n=N, tags="A", keys="k")
    assert_accepted(sent, N)
    received = read_all(go, topic, group)
    assert_once(received, series(N))
    assert {m["offsetMsgId"] for m in received} == {s["offsetMsgId"] for s in sent}
    assert {m["msgId"] for m in received} == {s["msgId"] for s in sent}
    assert {m["tags"] for m in received} == {"A"}


def test_producer_oneway(go: ClientSession, topic: str, group: str) -> None:
    go.run("produce", topic=topic, mode="oneway", n=N)
    assert_once(read_all(go, topic, group), series(N))


def test_producer_batch(go: ClientSession, topic: str, group: str) -> None:
    go.run("produce", topic=topic, mode="batch", n=N, keys="k")
    received = read_all(go, topic, group)
    assert bodies(received) == series(N)
    assert [m["queueOffset"] for m in received] == list(range(N))


def test_producer_compressed_body(go: ClientSession, topic: str, group: str) -> None:
    go.run("produce", topic=topic, n=2, body_size=20_000)
    received = read_all(go, topic, group, 2)
    assert_once(received, series(2))
    assert {len(m["body"]) for m in received} == {20_000}


def test_producer_creates_topic(go: ClientSession, name: str, group: str) -> None:
    assert_accepted(go.events("produce", "sent", topic=name, n=4), 4)
    assert_once(read_all(go, name, group, 4), series(4))


def test_producer_level(go: ClientSession, topic: str, group: str) -> None:
    check_level(go, topic, group)


def test_producer_timer_property(server: Server, go: ClientSession, topic: str, group: str) -> None:
    check_timer(server, go, topic, group)


def test_push_consumer_concurrent(go: ClientSession, topic: str, group: str) -> None:
    check_concurrent(go, topic, group)


def test_push_consumer_long_poll(go: ClientSession, topic: str, group: str) -> None:
    check_long_poll(go, topic, group)


def test_push_consumer_orderly(go: ClientSession, topic: str, group: str) -> None:
    check_orderly(go, topic, group)


def test_push_consumer_broadcast(go: ClientSession, topic: str, group: str) -> None:
    go.run("produce", topic=topic, n=4)
    received = go.events(
        "push-consume", "message", topic=topic, group=group, mode="broadcast", until=4
    )
    assert_once(received, series(4))


def test_push_consumer_tag_filter(go: ClientSession, topic: str, group: str) -> None:
    check_tags(go, topic, group)


def test_push_consumer_retry(go: ClientSession, topic: str, group: str) -> None:
    check_retry(go, topic, group, delay_ms=LEVELS_MS[0])


def test_push_consumer_resumes(go: ClientSession, topic: str, group: str) -> None:
    check_resume(go, topic, group)


def test_pull_consumer(go: ClientSession, topic: str, group: str) -> None:
    go.run("produce", topic=topic, n=N)
    assert_once(read_all(go, topic, group), series(N))
    go.run("produce", topic=topic, n=2, body="more")
    assert_once(read_all(go, topic, group, 2), series(2, "more"))
