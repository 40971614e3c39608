"""The commands of topics, groups and dead letters compared with mqadmin's, on the same broker.

`DUEMQ_INTEROP_PEER` selects the broker, as for the other tests here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from duemq.client import Admin
from tests.duemq.client.admin.test_admin import make_dead_letter
from tests.interop.mqadmin import AdminSession
from tests.interop.peers import make_peer, peer_name
from tests.support.commands import duemq
from tests.support.requirements import skip_without
from tests.support.server import BROKER_NAME, Server
from tests.support.wait_until import until

pytestmark = pytest.mark.extended
TOPIC, GROUP = "daily-topic", "daily-group"
QUEUE = re.compile(rf"^{BROKER_NAME}\s+(\d+)\s+(\d+)\s+(\d+)\s", re.M)
CLUSTER = re.compile(r"^(\S+)\s+(\S+)\s+(\d+)\s+(\d+\.\S+:\d+)\s", re.M)
PROGRESS = re.compile(rf"^{TOPIC}\s+{BROKER_NAME}\s+(\d+)\s+(\d+)\s+(\d+)\s", re.M)
AFTER_5 = pytest.mark.skipif(
    peer_name() == "apache-4.9.7", reason="mqadmin 5.3.3 sends requests that 4.9.7 does not have"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with skip_without(), make_peer(tmp_path_factory.mktemp("broker")) as peer:
        yield peer


@pytest.fixture(scope="module")
def mqadmin(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminSession]:
    with skip_without(), AdminSession(server, tmp_path_factory.mktemp("mqadmin")) as session:
        yield session


def shown(server: Server, *words: str) -> Any:
    """Return what a command printed as JSON."""
    done = duemq(*words, "--json", "--namesrv", server.namesrv_address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def done(server: Server, *words: str) -> str:
    """Return what a command printed."""
    ran = duemq(*words, "--namesrv", server.namesrv_address)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_topics_and_groups_are_changed_and_deleted(server: Server) -> None:
    done(server, "topic", "create", TOPIC, "--queues", "2")
    done(server, "group", "create", GROUP, "--retries", "3")
    for body in ("1", "2", "3"):
        done(server, "send", TOPIC, body, "--queue", "0")
    topic = shown(server, "topic", "show", TOPIC)
    assert [(queue["queue"], queue["end"]) for queue in topic["queues"]] == [(0, 3), (1, 0)]

    done(server, "group", "reset", GROUP, TOPIC, "--to", "latest", "--yes")
    [_, change] = [
        shown(server, "group", "reset", GROUP, TOPIC, "--to", to, "--yes")["queues"][0]
        for to in ("latest", "earliest")
    ]
    assert (change["former"], change["offset"]) == (3, 0)
    group = shown(server, "group", "show", GROUP)
    assert group["brokers"][BROKER_NAME]["retries"] == 3
    done(server, "topic", "create", TOPIC, "--queues", "3", "--update")
    settings = shown(server, "topic", "show", TOPIC)["brokers"][BROKER_NAME]
    assert (settings["read_queues"], settings["write_queues"]) == (3, 3)
    [member] = shown(server, "cluster")
    assert (member["broker"], member["failure"]) == (BROKER_NAME, None)

    done(server, "group", "delete", GROUP, "--yes")
    done(server, "topic", "delete", TOPIC, "--yes")
    for words in (("topic", "show", TOPIC), ("group", "show", GROUP)):
        assert duemq(*words, "--namesrv", server.namesrv_address).returncode == 4


def test_dead_letters_are_sent_again(server: Server) -> None:
    done(server, "topic", "create", "daily-dead", "--queues", "1")
    done(server, "group", "create", "daily-dead-group")
    done(server, "send", "daily-dead", "hello", "--key", "k")

    async def give_up() -> None:
        async with Admin(server.namesrv_address) as admin:
            await make_dead_letter(admin, "daily-dead-group", "daily-dead")

    asyncio.run(give_up())
    [letter] = shown(server, "dlq", "show", "daily-dead-group")
    assert (letter["topic"], letter["body"]) == ("daily-dead", "hello")
    resend = ("dlq", "resend", "daily-dead-group", "--id", letter["unique_id"])
    [result] = shown(server, *resend)["results"]
    assert result["result"] == "sent"
    read = ("--count", "2", "--wait", "60", "--from-first")
    lines = done(server, "consume", "daily-dead", *read).splitlines()
    assert len(lines) == 2
    assert all(letter["unique_id"] in line for line in lines)


@AFTER_5
def test_the_numbers_are_those_of_mqadmin(server: Server, mqadmin: AdminSession) -> None:
    mqadmin.run(f"updateTopic -b {{broker}} -t {TOPIC} -r 2 -w 2")
    mqadmin.run(f"updateSubGroup -b {{broker}} -g {GROUP} -r 3")
    mqadmin.run(f"updateTopic -b {{broker}} -t %RETRY%{GROUP} -r 1 -w 1")  # it finds the brokers
    for body in ("1", "2", "3"):
        done(server, "send", TOPIC, body)
    read = ("--group", GROUP, "--count", "2", "--wait", "60", "--from-first")
    done(server, "consume", TOPIC, *read)

    topic = shown(server, "topic", "show", TOPIC)
    offsets = [(each["queue"], each["first"], each["end"]) for each in topic["queues"]]
    status = QUEUE.findall(mqadmin.run(f"topicStatus -t {TOPIC}"))
    assert offsets == [tuple(map(int, row)) for row in status]

    group = shown(server, "group", "show", GROUP)
    progress = sorted(
        (each["queue"], each["end"], each["offset"])
        for each in group["queues"]
        if each["topic"] == TOPIC
    )
    rows = PROGRESS.findall(mqadmin.run(f"consumerProgress -g {GROUP}"))
    assert progress == sorted(tuple(map(int, row)) for row in rows)
    listed = mqadmin.run("topicList").split()
    names = {each["topic"] for each in shown(server, "topic", "list", "--all")}
    assert {TOPIC, "SELF_TEST_TOPIC"} <= names & {*listed, "SELF_TEST_TOPIC"}

    mqadmin.run(f"deleteSubGroup -b {{broker}} -g {GROUP}")
    mqadmin.run(f"deleteTopic -c {{cluster}} -t {TOPIC}")
    assert duemq("topic", "show", TOPIC, "--namesrv", server.namesrv_address).returncode == 4


@AFTER_5
def test_a_message_is_shown_as_mqadmin_finds_it(server: Server, mqadmin: AdminSession) -> None:
    done(server, "topic", "create", "history-topic", "--queues", "1")
    sent = shown(server, "send", "history-topic", "body", "--key", "k1")
    names: list[tuple[str, tuple[str, ...]]] = [
        (sent["offset_message_id"], ()),
        (sent["message_id"], ("--topic", "history-topic")),
        ("k1", ("--topic", "history-topic")),
    ]
    for name, topic in names:
        [message] = shown(server, "message", "show", name, *topic)
        assert (message["state"], message["body"]) == ("stored", "body")
        assert message["unique_key"] == sent["message_id"]
    assert sent["message_id"] in mqadmin.run("queryMsgByKey -t history-topic -k k1")


def test_top_says_what_a_broker_does_not_report(server: Server) -> None:
    top = ("top", "--once", "--namesrv", server.namesrv_address)
    # Apache 4.9.7 fails until it has counted for a second.
    until(lambda: duemq(*top).returncode == 0, seconds=30, what="figures of the broker")
    [load] = shown(server, "top", "--once")["brokers"]
    text = done(server, "top", "--once")
    assert (load["pending"] is None, "unknown" in text) == (peer_name() != "duemq",) * 2


@AFTER_5
def test_brokers_members_and_resets_are_those_of_mqadmin(
    server: Server, mqadmin: AdminSession
) -> None:
    topic, group = "daily-reset", "daily-reset-group"
    done(server, "topic", "create", topic, "--queues", "1")
    done(server, "group", "create", group)
    [member] = shown(server, "cluster")
    [row] = CLUSTER.findall(mqadmin.run("clusterList"))
    assert row == (member["cluster"], member["broker"], str(member["id"]), member["address"])
    route = mqadmin.run(f"topicRoute -t {topic}")
    assert re.search(r'"readQueueNums":\s*1\b', route), route
    for body in ("1", "2", "3"):
        done(server, "send", topic, body)
    read = ("--group", group, "--count", "3", "--wait", "60", "--from-first")
    done(server, "consume", topic, *read)

    def offset() -> int:
        """Return the committed offset as both show it."""
        [ours] = [
            each["offset"]
            for each in shown(server, "group", "show", group)["queues"]
            if each["topic"] == topic
        ]
        table = re.findall(
            rf"^{topic}\s+{BROKER_NAME}\s+0\s+3\s+(\d+)\s",
            mqadmin.run(f"consumerProgress -g {group}"),
            re.M,
        )
        assert table == [str(ours)]
        return int(ours)

    mqadmin.run(f"updateTopic -b {{broker}} -t %RETRY%{group} -r 1 -w 1")  # it finds the brokers
    assert offset() == 3
    done(server, "group", "reset", group, topic, "--to", "earliest", "--yes")
    assert offset() == 0
    mqadmin.run(f"resetOffsetByTime -g {group} -t {topic} -s now")
    assert offset() == 3
