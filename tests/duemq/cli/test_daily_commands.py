"""`duemq topic`: texts, results and bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from duemq.cli.exits import Exit
from tests.support.commands import Running, duemq, start


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
    unconfirmed = duemq("topic", "delete", "Orders", *where)
    assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (Exit.USAGE, True)
    assert "topic Orders deleted" in succeeded("topic", "delete", "Orders", "--yes", *where)
    assert json.loads(succeeded("topic", "list", "--json", *where)) == []


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
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
