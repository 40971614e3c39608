"""Commands of recurring schedules, on a broker."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import pytest

from duemq.cli.exits import Exit
from tests.support.commands import TOP, Running, duemq, start
from tests.support.wait_until import until

BLOCK = re.compile(r"```sh\n(.*?)```", re.S)
PAGE = TOP / "docs" / "how-to" / "recurring-schedules.md"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("broker"), timerWheelEnable="true")
    assert duemq("topic", "create", "T", *running.where).returncode == 0
    yield running
    running.stop()


def test_the_commands_of_the_page_run(broker: Running) -> None:
    lines = [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    assert len(lines) >= 9
    for line in lines:
        done = duemq(*shlex.split(line)[1:], env={"NAMESRV_ADDR": broker.where[1]})
        assert done.returncode == 0, (line, done.stderr)


def test_a_deletion_is_confirmed(broker: Running) -> None:
    create = ("schedule", "create", "d", "--every", "1h", "--topic", "T", "--body", "x")
    assert duemq(*create, *broker.where).returncode == 0
    refused = duemq("schedule", "delete", "d", *broker.where)
    assert refused.returncode == Exit.USAGE
    assert "schedule delete d deletes every 1h, topic T: add --yes" in refused.stderr
    dry = duemq("schedule", "delete", "d", "--dry-run", "--json", *broker.where)
    assert json.loads(dry.stdout)["deleted"]["definition"]["name"] == "d"
    assert duemq("schedule", "show", "d", *broker.where).returncode == 0
    assert duemq("schedule", "delete", "d", "--yes", *broker.where).returncode == 0
    assert duemq("schedule", "show", "d", *broker.where).returncode == Exit.REFUSED


def test_a_schedule_of_a_deleted_topic_shows_the_reason(broker: Running) -> None:
    assert duemq("topic", "create", "Gone", *broker.where).returncode == 0
    create = ("schedule", "create", "g", "--every", "1s", "--topic", "Gone", "--body", "x")
    assert duemq(*create, *broker.where).returncode == 0
    assert duemq("topic", "delete", "Gone", "--yes", *broker.where).returncode == 0

    def note() -> str:
        shown = duemq("schedule", "show", "g", "--json", *broker.where)
        return str(json.loads(shown.stdout)["note"])

    until(lambda: note() != "", seconds=60, what="the schedule is paused")
    assert note() == "paused by the broker: topic Gone does not exist"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("create", "a", "--cron", "61 * * * *", "--topic", "T"), Exit.REFUSED, "61 * * * *"),
        (("create", "a b", "--every", "1h", "--topic", "T"), Exit.USAGE, "cannot be the name"),
        (("create", "a", "--topic", "T"), Exit.USAGE, "give either"),
        (
            ("create", "a", "--every", "1h", "--topic", "T", "--start", "2026-01-01"),
            Exit.USAGE,
            "has no zone",
        ),
        (("delete", "Missing", "--yes"), Exit.REFUSED, "there is no schedule 'Missing'"),
        (("delete", "Missing", "--dry-run"), Exit.REFUSED, "there is no schedule 'Missing'"),
    ],
)
def test_wrong_input_is_one_line(
    broker: Running, words: tuple[str, ...], code: Exit, text: str
) -> None:
    done = duemq("schedule", *words, *broker.where)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_first_time_that_is_far_ahead_is_the_next_one(broker: Running) -> None:
    create = ("schedule", "create", "far", "--cron", "0 9 * * *", "--start", "2100-01-01T00:00Z")
    created = duemq(*create, "--topic", "T", "--body", "x", *broker.where)
    assert created.stdout == "schedule far created; next: 2100-01-01 09:00:00.000 UTC\n"
    again = duemq(*create, "--topic", "T", "--body", "x", "--json", *broker.where)
    assert json.loads(again.stdout)["planned_ms"] == 0
    paused = duemq("schedule", "pause", "far", *broker.where)
    assert paused.stdout == "schedule far is paused\n"
    resumed = duemq("schedule", "resume", "far", *broker.where)
    assert resumed.stdout == "schedule far is active; next: 2100-01-01 09:00:00.000 UTC\n"
