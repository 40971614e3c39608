"""`duemq topic`, `group`, `dlq`, `cluster`: texts, results and bad input."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.cli.exits import Exit
from duemq.client import Admin
from tests.duemq.client.admin.test_admin import make_dead_letter
from tests.support.commands import TOP, Running, duemq, start

BLOCK = re.compile(r"```sh\n(.*?)```", re.S)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()


def succeeded(*words: str) -> str:
    """Return what a command printed that must succeed."""
    done = duemq(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_topic_is_created_shown_changed_and_deleted(broker: Running) -> None:
    where = broker.where
    new = ("topic", "create", "Orders", "--queues", "2", "--type", "delay")
    assert "test: Orders would be created: 2 read and 2" in succeeded(*new, "--dry-run", *where)
    assert json.loads(succeeded("topic", "list", "--json", *where)) == []
    assert succeeded(*new, *where) == "test: Orders created: 2 read and 2 write queues, RW\n"
    assert "test: Orders unchanged" in succeeded(*new, *where)

    succeeded("send", "Orders", "hello", "--queue", "1", *where)
    listed = succeeded("topic", "list", *where)
    assert listed.startswith("1 topic; ")
    assert "message.type=DELAY" in listed
    assert "SCHEDULE_TOPIC_XXXX" in succeeded("topic", "list", "--all", *where)
    assert "Orders: 1 message" in succeeded("topic", "show", "Orders", *where)
    shown = json.loads(succeeded("topic", "show", "Orders", "--json", *where))
    assert [queue["messages"] for queue in shown["queues"]] == [0, 1]

    change = ("topic", "create", "Orders", "--read-queues", "4", "--permission", "w")
    refused = duemq(*change, *where)
    assert (refused.returncode, "change it with --update" in refused.stderr) == (4, True)
    changed = succeeded(*change, "--update", *where)
    assert changed == "test: Orders changed: 4 read and 2 write queues, W\n"

    assert "would be deleted: 1 stored message" in succeeded(
        "topic", "delete", "Orders", "--dry-run", *where
    )
    succeeded("topic", "create", "Delayed", *where)
    succeeded("send", "Delayed", "x", "--at", "+1h", *where)
    succeeded("send", "Delayed", "y", "--level", "17", *where)
    assert succeeded("topic", "delete", "Delayed", "--yes", *where).endswith(
        "; 2 pending messages will be in quarantine when due\n"
    )
    succeeded("timers", "cancel", "--topic", "Delayed", "--yes", *where)

    unconfirmed = duemq("topic", "delete", "Orders", *where)
    assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (Exit.USAGE, True)
    assert "topic Orders deleted" in succeeded("topic", "delete", "Orders", "--yes", *where)
    assert json.loads(succeeded("topic", "list", "--json", *where)) == []


def test_a_group_is_created_shown_reset_and_deleted(broker: Running) -> None:
    where = broker.where
    new = ("group", "create", "billing", "--retries", "3")
    assert "billing would be created" in succeeded(*new, "--dry-run", *where)
    assert succeeded(*new, *where) == "test: billing created: 3 retries\n"
    assert succeeded(*new, *where) == "test: billing unchanged: 3 retries\n"
    refused = duemq("group", "create", "billing", "--retries", "4", *where)
    assert (refused.returncode, "change it with --update" in refused.stderr) == (4, True)

    succeeded("topic", "create", "Bills", "--queues", "1", *where)
    for body in ("1", "2", "3"):
        succeeded("send", "Bills", body, *where)
    read = ("--group", "billing", "--count", "2", "--wait", "60", "--from-first")
    succeeded("consume", "Bills", *read, *where)
    groups = {
        group["group"]: group for group in json.loads(succeeded("group", "list", "--json", *where))
    }
    assert (groups["billing"]["lag"], groups["billing"]["members"]) == (1, [])
    names = json.loads(succeeded("group", "list", "--no-lag", "--json", *where))
    assert "billing" in [group["group"] for group in names]
    assert "billing: 0 members, lag 1" in succeeded("group", "show", "billing", *where)
    shown = json.loads(succeeded("group", "show", "billing", "--json", *where))
    [queue] = [queue for queue in shown["queues"] if queue["topic"] == "Bills"]
    assert (queue["offset"], queue["end"], queue["lag"]) == (2, 3, 1)
    assert queue["last_consumed"] is not None

    reset = ("group", "reset", "billing", "Bills", "--to", "earliest")
    assert "2 messages again, 0 skipped, dry run" in succeeded(*reset, "--dry-run", *where)
    unconfirmed = duemq(*reset, *where)
    assert (unconfirmed.returncode, "2 messages again" in unconfirmed.stderr) == (2, True)
    assert "2 messages again, 0 skipped" in succeeded(*reset, "--yes", *where)
    latest = ("group", "reset", "billing", "Bills", "--to", "latest", "--yes", "--json")
    [change] = json.loads(succeeded(*latest, *where))["queues"]
    assert (change["former"], change["offset"]) == (0, 3)

    gone = succeeded("group", "delete", "billing", "--dry-run", *where)
    assert gone.startswith("group billing would be deleted: the offsets of")
    assert "group billing deleted" in succeeded("group", "delete", "billing", "--yes", *where)
    assert duemq("group", "show", "billing", *where).returncode == Exit.REFUSED


def test_dead_letters_are_shown_and_sent_again(broker: Running) -> None:
    where = broker.where
    succeeded("topic", "create", "Dead", "--queues", "1", *where)
    succeeded("group", "create", "undertaker", *where)
    succeeded("send", "Dead", "hello", "--key", "k", *where)

    async def give_up() -> None:
        async with Admin(broker=str(broker.ready["address"])) as admin:
            await make_dead_letter(admin, "undertaker", "Dead")

    asyncio.run(give_up())
    assert "1 group with dead letters" in succeeded("dlq", "list", *where)
    assert "1 dead letter of undertaker" in succeeded("dlq", "show", "undertaker", *where)
    [letter] = json.loads(succeeded("dlq", "show", "undertaker", "--json", *where))
    assert (letter["offset"], letter["topic"], letter["body"]) == ("test/0", "Dead", "hello")

    resend = ("dlq", "resend", "undertaker")
    assert duemq(*resend, *where).returncode == Exit.USAGE
    unconfirmed = duemq(*resend, "--all", *where)
    assert (unconfirmed.returncode, "sends 1 message: add --yes" in unconfirmed.stderr) == (2, True)
    assert "1 would be sent" in succeeded(*resend, "--all", "--dry-run", *where)
    assert "1 sent" in succeeded(*resend, "--id", "test/0", *where)
    done = succeeded("consume", "Dead", "--count", "2", "--wait", "60", "--from-first", *where)
    assert len(done.splitlines()) == 2
    missing = duemq(*resend, "--id", "test/7", *where)
    assert (missing.returncode, "no dead letter test/7" in missing.stderr) == (2, True)


def test_the_brokers_of_a_cluster_are_shown(broker: Running) -> None:
    [member] = json.loads(succeeded("cluster", "--json", *broker.where))
    assert (member["broker"], member["id"], member["failure"]) == ("test", 0, None)
    assert member["version"]
    assert member["version"] in succeeded("cluster", *broker.where)
    nothing = duemq("cluster", "--broker", "127.0.0.1:1")
    assert nothing.returncode == Exit.UNREACHABLE


def test_an_overview_is_shown_once(broker: Running) -> None:
    overview = json.loads(succeeded("top", "--once", "--json", *broker.where))
    [load] = overview["brokers"]
    assert (load["broker"], load["role"], load["failure"]) == ("test", "master", "")
    assert load["pending"] == 0
    assert "lag of all groups" in succeeded("top", "--once", *broker.where)
    assert duemq("top", "--once", "--broker", "127.0.0.1:1").returncode == Exit.UNREACHABLE


def test_the_commands_of_the_page_run(
    broker: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    page = (TOP / "docs" / "how-to" / "daily-commands.md").read_text()
    lines = [line for block in BLOCK.findall(page) for line in block.splitlines()]
    assert len(lines) > 20
    for line in lines:
        done = duemq(*shlex.split(line)[1:], env={"NAMESRV_ADDR": broker.where[1]})
        assert done.returncode == 0, (line, done.stderr)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("group", "show", "Missing"), Exit.REFUSED, "group Missing does not exist"),
        (("group", "delete", "Missing", "--yes"), Exit.REFUSED, "group Missing does not exist"),
        (("group", "create", "a b"), Exit.REFUSED, "refused with code"),
        (("group", "reset", "g", "T", "--to", "soon"), Exit.USAGE, "cannot read the time 'soon'"),
        (
            ("group", "reset", "g", "Missing", "--to", "latest"),
            Exit.REFUSED,
            "topic Missing does not exist",
        ),
        (("dlq", "show", "Missing"), Exit.REFUSED, "group Missing has no dead letters"),
        (("topic", "show", "Missing"), Exit.REFUSED, "topic Missing does not exist"),
        (("topic", "delete", "Missing", "--yes"), Exit.REFUSED, "topic Missing does not exist"),
        (("topic", "create", "a b"), Exit.REFUSED, "refused with code"),
        (("topic", "create", "T", "--permission", "x"), Exit.USAGE, "give RW, R, W or -"),
        (("topic", "create", "T", "--attribute", "x"), Exit.USAGE, "give NAME=VALUE"),
        (("topic", "create", "T", "--attribute", "no.such=1"), Exit.REFUSED, "refused with"),
        (("topic", "create", "T", "--at", "other"), Exit.REFUSED, "no master of broker other"),
    ],
)
def test_wrong_input_is_one_line(
    broker: Running, words: tuple[str, ...], code: Exit, text: str
) -> None:
    done = duemq(*words, *broker.where)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    assert len(done.stderr.splitlines()) == 1
