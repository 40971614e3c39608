"""`duemq send`: new topics, levels, times, and what is printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from duemq.cli.exits import Exit
from tests.support.commands import Running, duemq, start


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # the template topic has more queues than a new topic gets
    running = start(tmp_path_factory.mktemp("broker"), defaultTopicQueueNums="8")
    yield running
    running.stop()


@pytest.mark.finding("B4")
@pytest.mark.parametrize("which", ["--namesrv", "--broker"])
def test_copies_to_a_topic_that_does_not_exist_yet(broker: Running, which: str) -> None:
    address = str(broker.ready["namesrv" if which == "--namesrv" else "address"])
    topic = f"New{which.strip('-')}"
    sent = duemq("send", topic, "x", "--count", "9", "--json", which, address)
    assert sent.returncode == 0, sent.stderr
    queues = [json.loads(line)["queue_id"] for line in sent.stdout.splitlines()]
    assert queues == [0, 1, 2, 3, 0, 1, 2, 3, 0]


@pytest.mark.finding("B13")
def test_what_is_printed_of_a_message_for_later(broker: Running) -> None:
    timer = duemq("send", "T", "x", "--at", "2060-01-01T00:00:00.920", *broker.where)
    if "max delay" in timer.stderr:
        timer = duemq("send", "T", "x", "--at", "+1h30m", *broker.where)
    assert timer.returncode == 0, timer.stderr
    assert "due            20" in timer.stdout
    assert "recall handle  " in timer.stdout
    level = duemq("send", "T", "x", "--level", "2", *broker.where)
    assert "due            1h after it was stored" in level.stdout
    assert all(len(line) <= 80 for line in level.stdout.splitlines())


@pytest.mark.finding("B13")
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--level", "99"), Exit.DONE, "there is no level 99: the broker uses the highest, 2"),
        (("--at", "2020-01-01T00:00"), Exit.DONE, "is in the past: the message is delivered now"),
        (("--at", "+1h", "--level", "1"), Exit.USAGE, "--at and --level exclude each other"),
        (
            ("--queue", "99"),
            Exit.USAGE,
            "--queue 99: topic T has no such queue; its queues are 0 to",
        ),
    ],
)
def test_nothing_is_changed_in_silence(
    broker: Running, words: tuple[str, ...], code: Exit, text: str
) -> None:
    sent = duemq("send", "T", "x", *words, *broker.where)
    assert (sent.returncode, text in sent.stderr) == (code, True), sent.stderr


@pytest.mark.finding("B25")
def test_json_names_are_all_of_one_style(broker: Running) -> None:
    def names(value: Any) -> Iterator[str]:
        for name, inner in value.items() if isinstance(value, dict) else ():
            yield name
            if name not in ("properties", "topics"):  # their names are the user's own
                yield from names(inner)
        for inner in value if isinstance(value, list) else ():
            yield from names(inner)

    sent = duemq("send", "Style", "x", "--key", "style", "--json", *broker.where)
    assert sent.returncode == 0, sent.stderr
    found = set(names(json.loads(sent.stdout)))
    for words in (
        ("consume", "Style", "--from-first", "--count", "1"),
        ("message", "show", "style"),
        ("levels",),
        ("timers",),
        ("timers", "list"),
        ("migrate", "plan", "--dry-run"),
        ("migrate", "status"),
    ):
        found |= set(names(json.loads(duemq(*words, "--json", *broker.where).stdout)))
    assert len(found) > 100
    assert [name for name in sorted(found) if not re.fullmatch("[a-z0-9_.]+", name)] == []


@pytest.mark.finding("B7")
def test_a_broker_named_as_name_server_and_the_other_way_round(broker: Running) -> None:
    address, namesrv = str(broker.ready["address"]), str(broker.ready["namesrv"])
    for words in (("levels",), ("send", "T", "x"), ("consume", "T"), ("timers",)):
        done = duemq(*words, "-n", address)
        assert done.returncode == Exit.USAGE, done.stderr
        assert "if it is a broker, give it as broker (--broker, -b)" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        done = duemq(*words, "-b", namesrv)
        assert done.returncode == Exit.REFUSED, done.stderr
        assert "if it is a name server, give it as namesrv (--namesrv, -n)" in done.stderr
