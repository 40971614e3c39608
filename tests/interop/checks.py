"""Checks of sent and received messages that apply to all clients."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.interop.peers import LEVELS_MS
from tests.interop.session import Client, ClientFailed, Event
from tests.support.server import Server

N = 8  # messages of a series


def bodies(messages: Iterable[Event]) -> list[str]:
    """Return the bodies in order of arrival."""
    return [message["body"].rstrip(".") for message in messages]


def series(count: int, prefix: str = "body") -> list[str]:
    """Return the bodies of a series that a client program sent."""
    return [f"{prefix}-{i}" for i in range(count)]


def assert_accepted(sent: list[Event], count: int) -> None:
    """Check that every send was acknowledged, with distinct queue offsets."""
    assert [event["status"] for event in sent] == ["SEND_OK"] * count
    assert len({event["msgId"] for event in sent}) == count


def assert_once(messages: list[Event], wanted: list[str]) -> None:
    """Check that exactly these bodies were received, each once."""
    assert sorted(bodies(messages)) == sorted(wanted)


def assert_not_early(message: Event, delay_ms: int, *, precision_ms: int = 0) -> None:
    """Check that a message was stored in its topic after its delay.

    The wait for it has a limit: a busy machine may send or deliver it seconds later.

    Args:
        precision_ms: Precision of a broker that rounds due times down, in ms.
    """
    waited_ms = message["storeTimestamp"] - message["bornTimestamp"]
    assert waited_ms >= delay_ms - precision_ms, f"early: stored after {waited_ms} ms"


def assert_queue_order(messages: list[Event]) -> None:
    """Check that the messages of each queue were received in order of their offsets."""
    for queue_id in {message["queueId"] for message in messages}:
        offsets = [m["queueOffset"] for m in messages if m["queueId"] == queue_id]
        assert offsets == sorted(offsets), f"queue {queue_id}"


def check_level(client: Client, topic: str, group: str, *, level: int = 1) -> None:
    """Check that a level message is readable after its delay, but not before."""
    sent = client.events("produce", "sent", topic=topic, n=3, level=level, keys="k")
    assert_accepted(sent, 3)
    received = client.events(
        "push-consume", "message", topic=topic, group=group, until=3, linger_ms=200
    )
    assert_once(received, series(3))
    for message in received:
        assert_not_early(message, LEVELS_MS[level - 1])
        assert message["topic"] == topic


def check_timers_are_refused(client: Client, topic: str) -> None:
    """Check that a broker without timers refuses messages with a delivery time."""
    with pytest.raises(ClientFailed):
        client.run("produce", topic=topic, delay_ms=2_000)


def check_timer(server: Server, client: Client, topic: str, group: str) -> None:
    """Check that a timer is readable after its delay, or is refused by a broker without timers."""
    if not server.has_timers:
        check_timers_are_refused(client, topic)
        return
    client.run("produce", topic=topic, delay_ms=2_000)
    (message,) = client.events("push-consume", "message", topic=topic, group=group, until=1)
    assert_not_early(message, 2_000, precision_ms=1_000)


def check_concurrent(client: Client, topic: str, group: str) -> None:
    """Check that a consumer receives each message of a series once."""
    client.run("produce", topic=topic, n=N)
    received = client.events(
        "push-consume", "message", topic=topic, group=group, until=N, linger_ms=300
    )
    assert_once(received, series(N))


def check_long_poll(client: Client, topic: str, group: str) -> None:
    """Check that a consumer that has started receives what is sent afterwards."""
    consumer = client.start("push-consume", topic=topic, group=group, until=N)
    consumer.wait_for("started")
    client.run("produce", topic=topic, n=N)
    assert_once(consumer.wait_for("message", N), series(N))
    consumer.result()


def check_orderly(client: Client, topic: str, group: str) -> None:
    """Check that an orderly consumer receives the messages of each queue in order."""
    client.run("produce", topic=topic, mode="ordered", shards=2, n=N)
    received = client.events(
        "push-consume", "message", topic=topic, group=group, mode="orderly", until=N
    )
    assert_once(received, series(N))
    assert_queue_order(received)


def check_tags(client: Client, topic: str, group: str) -> None:
    """Check that a consumer with a subscription to two of three tags receives those two."""
    for tag in ("A", "B", "C"):
        client.run("produce", topic=topic, n=2, tags=tag, body=tag)
    received = client.events(
        "push-consume",
        "message",
        topic=topic,
        group=group,
        tags="A || B",
        until=4,
        linger_ms=200,
    )
    assert_once(received, [*series(2, "A"), *series(2, "B")])


def check_resume(client: Client, topic: str, group: str) -> None:
    """Check that a restarted consumer resumes at the offset of its group."""
    client.run("produce", topic=topic, n=4, body="first")
    received = client.events("push-consume", "message", topic=topic, group=group, until=4)
    assert_once(received, series(4, "first"))
    client.run("produce", topic=topic, n=4, body="second")
    received = client.events(
        "push-consume", "message", topic=topic, group=group, until=4, linger_ms=300
    )
    assert_once(received, series(4, "second"))


def check_retry(client: Client, topic: str, group: str, *, delay_ms: int) -> None:
    """Check that a failed message is redelivered after a level, with its count and origin."""
    client.run("produce", topic=topic, n=3)
    received = client.events(
        "push-consume", "message", topic=topic, group=group, until=3, fail_first=1, linger_ms=200
    )
    assert_once([m for m in received if m["action"] == "consumed"], series(3))
    (refused,) = (m for m in received if m["action"] == "later")
    (again,) = (m for m in received if m["reconsumeTimes"] == 1)
    assert (refused["body"], refused["msgId"]) == (again["body"], again["msgId"])
    assert again["storeTimestamp"] >= refused["at"] + delay_ms
    assert again["topic"] == topic, "clients show the real topic of a retry"
