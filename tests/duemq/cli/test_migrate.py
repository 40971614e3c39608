"""`duemq migrate` as a user runs it: processes on a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.cli.exits import Exit
from tests.support.commands import Running, duemq, start

COUNT = 25
LEVEL = "2"  # an hour: nothing is due while the test runs


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("migrate")


@pytest.fixture(scope="module")
def broker(root: Path) -> Iterator[Running]:
    running = start(root)
    yield running
    running.stop()


def reported(broker: Running, *words: str) -> Any:
    done = duemq("migrate", *words, "--json", *broker.where)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def send(broker: Running, count: int = COUNT) -> None:
    sent = duemq("send", "T", "body", "--level", LEVEL, "--count", str(count), *broker.where)
    assert sent.returncode == 0, sent.stderr


def test_from_plan_to_rollback(broker: Running) -> None:
    send(broker)
    plan = reported(broker, "plan", "--level", LEVEL)
    assert [level["pending"] for level in plan["levels"]] == [COUNT]
    assert reported(broker, "start", plan["plan_id"], "--dry-run")["levels"] == [2]
    started = reported(broker, "start", plan["plan_id"])
    [level] = started["status"]["levels"]
    assert (level["state"], level["moved"]) == ("done", COUNT)
    assert reported(broker, "verify")["right"]
    send(broker, 1)
    again = duemq("migrate", "start", "--level", LEVEL, *broker.where)
    assert again.returncode == Exit.REFUSED
    assert "level 2 is done" in again.stderr
    shown = duemq("migrate", "status", *broker.where)
    assert f"{COUNT}" in shown.stdout
    assert "timers" in shown.stdout
    back = reported(broker, "rollback", "--level", LEVEL)
    assert back["status"]["levels"][0]["state"] == "rolled_back"
    levels = json.loads(duemq("levels", "--json", *broker.where).stdout)
    assert levels[0]["pending"] == COUNT + 1


def test_history_of_the_ledger(broker: Running, root: Path) -> None:
    url = reported(broker, "status")["ledger"]["url"]
    page = root / "run.html"
    for _ in range(100):
        timers_table = duemq("migrate", "history", "--ledger", url, "--json")
        if timers_table.returncode == 0 and json.loads(timers_table.stdout):
            break
    [run] = json.loads(timers_table.stdout)
    written = duemq("migrate", "history", "--ledger", url, "--html", str(page))
    assert written.returncode == 0, written.stderr
    assert run["migration_id"] in page.read_text()


def test_the_throttle_changes_while_it_runs(broker: Running) -> None:
    status = reported(broker, "throttle", "--rate", "500", "--lateness", "30")
    assert (status["throttle"]["rate_per_s"], status["throttle"]["target_p99_ms"]) == (500, 30)
    text_output = duemq("migrate", "throttle", "--rate", "600", *broker.where)
    assert "saved in the broker's configuration: migrationRate=600" in text_output.stdout


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("plan", "--level", "99"), Exit.REFUSED, "no level 99 here; there are: 1, 2"),
        (("start",), Exit.USAGE, "no levels selected: give a plan"),
        (("start", "plan-1"), Exit.REFUSED, "has no such plan"),
        (("start", "--level", "1", "--map", "T"), Exit.USAGE, "must be TOPIC=DELAY"),
        (("rollback", "--level", "1"), Exit.REFUSED, "no level 1 here"),
        (("throttle",), Exit.USAGE, "nothing to change"),
    ],
)
def test_refusals_name_the_action(
    words: tuple[str, ...], code: Exit, why: str, broker: Running
) -> None:
    done = duemq("migrate", *words, *broker.where)
    assert done.returncode == code, done.stderr
    assert why in done.stderr
