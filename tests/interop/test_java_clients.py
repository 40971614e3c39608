"""Apache's Java clients 4.9.7, 5.3.3 and 5.5.1: one test per feature."""

from __future__ import annotations

import itertools

import pytest

from tests.interop.checks import (
    N,
    assert_accepted,
    assert_not_early,
    assert_once,
    bodies,
    check_concurrent,
    check_level,
    check_long_poll,
    check_orderly,
    check_resume,
    check_retry,
    check_tags,
    series,
)
from tests.interop.peers import LEVELS_MS, peer_name
from tests.interop.session import ClientFailed, ClientSession, Event
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

WAIT_S = 120
TIMER_PRECISION_MS = 1_000  # Apache rounds due times down to this precision, and the test allows it


def read_all(java: ClientSession, topic: str, group: str, **options: object) -> list[Event]:
    return java.events("pull", "message", topic=topic, group=group, **options)


@pytest.mark.parametrize("mode", ["sync", "async", "ordered"])
def test_producer(java: ClientSession, topic: str, group: str, mode: str) -> None:
    sent = java.events("produce", "sent", topic=topic, mode=mode, n=N, tags="A", keys="k")
    assert_accepted(sent, N)
    received = read_all(java, topic, group)
    assert_once(received, series(N))
    places = {(m["queueId"], m["queueOffset"]) for m in received}
    assert places == {(s["queueId"], s["queueOffset"]) for s in sent}
    assert {m["offsetMsgId"] for m in received} == {s["offsetMsgId"] for s in sent}
    assert {m["msgId"] for m in received} == {s["msgId"] for s in sent}
    assert {m["tags"] for m in received} == {"A"}


def test_producer_oneway(java: ClientSession, topic: str, group: str) -> None:
    java.run("produce", topic=topic, mode="oneway", n=N)
    received = java.events("push-consume", "message", topic=topic, group=group, until=N)
    assert_once(received, series(N))


def test_producer_batch(java: ClientSession, topic: str, group: str) -> None:
    (sent,) = java.events("produce", "sent", topic=topic, mode="batch", n=N, keys="k")
    received = read_all(java, topic, group)
    assert bodies(received) == series(N)
    assert {m["queueId"] for m in received} == {sent["queueId"]}
    assert [m["queueOffset"] for m in received] == list(range(N))
    assert ",".join(m["offsetMsgId"] for m in received) == sent["offsetMsgId"]


def test_producer_compressed_body(java: ClientSession, topic: str, group: str) -> None:
    java.run("produce", topic=topic, n=2, body_size=20_000)
    received = read_all(java, topic, group)
    assert_once(received, series(2))
    assert {len(m["body"]) for m in received} == {20_000}


def test_producer_creates_topic(java: ClientSession, name: str, group: str) -> None:
    assert_accepted(java.events("produce", "sent", topic=name, n=4), 4)
    assert_once(read_all(java, name, group), series(4))


def test_producer_level(java: ClientSession, topic: str, group: str) -> None:
    check_level(java, topic, group)


def test_producer_user_property(java: ClientSession, topic: str, group: str) -> None:
    java.run("produce", topic=topic, property="colour=deep blue", level=1)
    (message,) = java.events("push-consume", "message", topic=topic, group=group, until=1)
    assert message["properties"]["colour"] == "deep blue"
    assert "DELAY" not in message["properties"] or message["topic"] == topic


def test_push_consumer_concurrent(java: ClientSession, topic: str, group: str) -> None:
    check_concurrent(java, topic, group)


def test_push_consumer_long_poll(java: ClientSession, topic: str, group: str) -> None:
    check_long_poll(java, topic, group)


def test_push_consumer_orderly(java: ClientSession, topic: str, group: str) -> None:
    check_orderly(java, topic, group)


def test_push_consumer_orderly_retries_in_place(
    java: ClientSession, topic: str, group: str
) -> None:
    java.run("produce", topic=topic, mode="ordered", shards=1, n=4)
    received = java.events(
        "push-consume", "message", topic=topic, group=group, mode="orderly", until=4, fail_first=2
    )
    assert bodies(received) == ["body-0"] * 3 + ["body-1", "body-2", "body-3"]


def test_push_consumer_broadcast(java: ClientSession, topic: str, group: str) -> None:
    java.run("produce", topic=topic, n=4)
    options = {"topic": topic, "group": group, "mode": "broadcast", "until": 4}
    both = [java.start("push-consume", **options, instance=f"{group}-{i}") for i in range(2)]
    for consumer in both:
        consumer.result()
        assert_once(consumer.named("message"), series(4))


def test_push_consumer_tag_filter(java: ClientSession, topic: str, group: str) -> None:
    check_tags(java, topic, group)


def test_push_consumer_sql_filter(java: ClientSession, topic: str, group: str) -> None:
    consumer = java.start(
        "push-consume",
        topic=topic,
        group=group,
        sql="size > 2 AND TAGS IS NULL",
        until=4,
        linger_ms=200,
    )
    for size in ("1", "3", "x", "4"):
        java.run("produce", topic=topic, n=2, body=size, property=f"size={size}")
    java.run("produce", topic=topic, n=2, body="tagged", tags="A", property="size=5")
    consumer.result()
    assert_once(consumer.named("message"), [*series(2, "3"), *series(2, "4")])


def test_push_consumer_with_an_invalid_sql_filter_does_not_start(
    java: ClientSession, topic: str, group: str
) -> None:
    java.run("produce", topic=topic, n=1)
    with pytest.raises(ClientFailed, match="line 1, column 6"):
        java.run(
            "push-consume",
            topic=topic,
            group=group,
            sql="size >",
            until=1,
            wait_ms=5_000,
            instance=group,  # 4.9.7 keeps it registered and checks it with each later consumer
        )


def test_push_consumer_retry(java: ClientSession, topic: str, group: str) -> None:
    check_retry(java, topic, group, delay_ms=LEVELS_MS[0])


def test_push_consumer_dead_letter(java: ClientSession, topic: str, group: str) -> None:
    java.run("produce", topic=topic)
    consumer = java.start(
        "push-consume", topic=topic, group=group, fail_first=2, max_reconsume=1, until=1
    )
    consumer.wait_for("message", 2)
    dead = until(lambda: dead_letters(java, group), seconds=WAIT_S, what="dead letter", poll_s=0.2)
    consumer.stop()
    assert bodies(dead) == ["body-0"]
    assert dead[0]["properties"]["RETRY_TOPIC"] == topic


def dead_letters(java: ClientSession, group: str) -> list[Event]:
    try:
        return read_all(java, f"%DLQ%{group}", f"{group}-reader")
    except AssertionError:
        return []  # the topic does not exist yet


def test_push_consumer_resumes(java: ClientSession, topic: str, group: str) -> None:
    check_resume(java, topic, group)


def test_push_consumers_share(java: ClientSession, topic: str, group: str) -> None:
    both = [
        java.start(
            "push-consume",
            topic=topic,
            group=group,
            instance=f"{group}-{i}",
            wait_ms=3_000 * WAIT_S,
        )
        for i in range(2)
    ]
    for consumer in both:
        consumer.wait_for("started")

    parts = itertools.count()
    shared: list[bool] = []

    def received(prefix: str) -> list[list[Event]]:
        """Return the messages of a part, by member."""
        return [
            [event for event in consumer.named("message") if event["body"].startswith(prefix)]
            for consumer in both
        ]

    def produce(part: str) -> None:
        """Produce a part, and wait until the group has received all of it."""
        java.run("produce", topic=topic, n=N, body=part)
        wanted = set(series(N, part))
        until(
            lambda: {event["body"] for found in received(f"{part}-") for event in found} == wanted,
            seconds=WAIT_S,
            what=f"all of {part}",
        )

    def queues_are_assigned() -> bool:
        """Return whether the members read different queues, in this part and the last one.

        While queues change their member, both members may receive their messages.
        """
        part = f"part{next(parts)}"
        produce(part)
        first, second = ({event["queueId"] for event in found} for found in received(f"{part}-"))
        shared.append(bool(first and second) and first.isdisjoint(second))
        return shared[-2:] == [True, True]

    until(
        queues_are_assigned,
        seconds=WAIT_S,
        what="two members of a group, each with queues",
        poll_s=0.2,
    )
    produce("final")
    for consumer in both:
        consumer.stop()
    first, second = received("final-")
    assert_once([*first, *second], series(N, "final"))


def test_pull_consumer(java: ClientSession, topic: str, group: str) -> None:
    sent = java.events("produce", "sent", topic=topic, n=N)
    events = java.run("pull", topic=topic, group=group, batch=2)
    assert_once([e for e in events if e["event"] == "message"], series(N))
    committed = {e["queueId"]: e["offset"] for e in events if e["event"] == "committed"}
    counts = {q: sum(s["queueId"] == q for s in sent) for q in range(4)}
    assert committed == counts
    assert read_all(java, topic, group) == [], "the group's progress was kept"


@pytest.mark.parametrize("mode", ["subscribe", "assign"])
def test_lite_pull_consumer(
    server: Server, java: ClientSession, topic: str, group: str, mode: str
) -> None:
    if (server.name, java.name) == ("apache-4.9.7", "java-5.3.3"):
        pytest.skip("a broker of 4.9 does not know the lite pull request of a 5.x client")
    java.run("produce", topic=topic, n=N)
    events = java.run("lite-pull", topic=topic, group=group, until=N, mode=mode, linger_ms=200)
    assert_once([e for e in events if e["event"] == "message"], series(N))
    committed = [max(e["offset"], 0) for e in events if e["event"] == "committed"]
    assert sum(committed) == N


def test_transaction_commit_and_rollback(java: ClientSession, topic: str, group: str) -> None:
    java.run("transaction", topic=topic, group=f"p-{group}", outcome="rollback", body="no")
    java.run("transaction", topic=topic, group=f"p-{group}", outcome="commit", n=2, body="yes")
    received = java.events(
        "push-consume", "message", topic=topic, group=group, until=2, linger_ms=300
    )
    assert_once(received, series(2, "yes"))


@pytest.mark.parametrize("response", ["commit", "rollback"])
def test_transaction_check(java: ClientSession, topic: str, group: str, response: str) -> None:
    checked = java.events(
        "transaction",
        "checked",
        topic=topic,
        group=f"p-{group}",
        outcome="unknown",
        check=response,
        body="requested",
    )
    assert bodies(checked)[0] == "requested-0"
    assert checked[0]["topic"] == topic
    java.run("transaction", topic=topic, group=f"p-{group}", outcome="commit", body="after")
    wanted = ["requested-0", "after-0"] if response == "commit" else ["after-0"]
    received = java.events(
        "push-consume", "message", topic=topic, group=group, until=len(wanted), linger_ms=300
    )
    assert_once(received, wanted)


def test_query_by_key(java: ClientSession, topic: str) -> None:
    java.run("produce", topic=topic, n=3, keys="order")
    found = until(
        lambda: query(java, "query-key", topic=topic, key="order-1"),
        seconds=WAIT_S,
        what="message in the key index",
    )
    assert bodies(found) == ["body-1"]


def test_query_by_key_after_level(java: ClientSession, topic: str) -> None:
    java.run("produce", topic=topic, n=1, keys="late", level=1)
    found = until(
        lambda: query(java, "query-key", topic=topic, key="late-0"),
        seconds=WAIT_S,
        what="delivered message in the key index of its real topic",
        poll_s=0.1,
    )
    assert bodies(found) == ["body-0"]
    assert_not_early(found[0], LEVELS_MS[0])


@pytest.mark.parametrize("kind", ["msgId", "offsetMsgId"])
def test_view_message(java: ClientSession, topic: str, kind: str) -> None:
    sent = java.events("produce", "sent", topic=topic, n=3)
    found = until(
        lambda: query(java, "view", topic=topic, message_id=sent[1][kind]),
        seconds=WAIT_S,
        what=f"message by {kind}",
    )
    assert bodies(found) == ["body-1"]
    assert found[0]["offsetMsgId"] == sent[1]["offsetMsgId"]


def query(java: ClientSession, command: str, **options: object) -> list[Event]:
    try:
        return java.events(command, "message", **options)
    except AssertionError:
        return []  # the index is some milliseconds behind the log


def test_search_offset_by_time(java: ClientSession, topic: str, group: str) -> None:
    java.run("produce", topic=topic, mode="ordered", shards=1, n=N)
    stamps = [message["storeTimestamp"] for message in read_all(java, topic, group)]

    def offset_at(time_ms: int) -> int:
        found = java.events("search-offset", "offset", topic=topic, time=time_ms)
        return int({event["queueId"]: event["offset"] for event in found}[0])

    assert offset_at(stamps[0] - 60_000) == 0
    assert stamps[offset_at(stamps[N // 2])] == stamps[N // 2]
    assert offset_at(now_ms() + 60_000) in {
        N - 1,
        N,
    }  # 4.9.7 returns the last offset, 5.3.3 the end


@pytest.mark.parametrize("kind", ["delay-ms", "delay-sec", "deliver-at"])
def test_timer(
    server: Server, java_with_timers: ClientSession, topic: str, group: str, kind: str
) -> None:
    value = {"delay-ms": 1_500, "delay-sec": 2, "deliver-at": now_ms() + 2_000}[kind]
    if not server.has_timers:
        with pytest.raises(ClientFailed, match="delivery time"):
            java_with_timers.run("timer", topic=topic, n=1, **{kind: value})
        return
    delay_ms = {"delay-ms": 1_500, "delay-sec": 2_000, "deliver-at": 1_000}[kind]
    sent = java_with_timers.events("timer", "sent", topic=topic, n=3, **{kind: value})
    assert_accepted(sent, 3)
    received = java_with_timers.events(
        "push-consume", "message", topic=topic, group=group, until=3, linger_ms=200
    )
    assert_once(received, series(3))
    for message in received:
        assert_not_early(message, delay_ms, precision_ms=TIMER_PRECISION_MS)


def test_timer_recall(
    server: Server, java_with_timers: ClientSession, topic: str, group: str
) -> None:
    java = java_with_timers
    if not server.has_timers:
        with pytest.raises(ClientFailed):
            java.run("recall", topic=topic, handle="djEgVCBiIDEgMg==")
        return
    (kept,) = java.events("timer", "sent", topic=topic, body="kept", delay_ms=7_000)
    (taken,) = java.events("timer", "sent", topic=topic, body="taken", delay_ms=6_000)
    (recalled,) = java.events("recall", "recalled", topic=topic, handle=taken["recallHandle"])
    assert recalled["msgId"] == taken["msgId"]
    (message,) = java.events(
        "push-consume", "message", topic=topic, group=group, until=1, linger_ms=500
    )
    assert (message["body"], message["msgId"]) == ("kept-0", kept["msgId"])


def test_timer_recall_is_answered_by_the_state_of_the_timer(
    server: Server, java_with_timers: ClientSession, topic: str, group: str
) -> None:
    """DueMQ responds with the state of the timer, Apache once the request is stored."""
    java = java_with_timers
    if not server.has_timers or peer_name() != "duemq":
        pytest.skip("only DueMQ reports the outcome of a recall")
    (gone,) = java.events("timer", "sent", topic=topic, body="gone", delay_ms=60_000)
    for _ in range(2):
        (recalled,) = java.events("recall", "recalled", topic=topic, handle=gone["recallHandle"])
        assert recalled["msgId"] == gone["msgId"]
    (sent,) = java.events("timer", "sent", topic=topic, body="late", delay_ms=300)
    (message,) = java.events("push-consume", "message", topic=topic, group=group, until=1)
    assert message["body"] == "late-0"
    with pytest.raises(ClientFailed, match="604"):
        java.run("recall", topic=topic, handle=sent["recallHandle"])
    with pytest.raises(ClientFailed):
        java.run("recall", topic=topic, handle=sent["recallHandle"][:20])


def test_timer_cancelled_by_a_marker(
    server: Server, java_with_timers: ClientSession, topic: str, group: str
) -> None:
    if not server.has_timers:
        return
    java, at = java_with_timers, now_ms() + 6_000
    (kept,) = java.events("timer", "sent", topic=topic, body="kept", deliver_at=at)
    (taken,) = java.events("timer", "sent", topic=topic, body="taken", deliver_at=at)
    marker = f"{topic}+{taken['msgId']}"
    java.run("timer", topic=topic, body="marker", deliver_at=at, cancel=marker)
    (message,) = java.events(
        "push-consume", "message", topic=topic, group=group, until=1, linger_ms=2_000
    )
    assert (message["body"], message["msgId"]) == ("kept-0", kept["msgId"])
