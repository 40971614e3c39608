"""`duemq timers cancel`, `move`, `fire`: requests, output, exit codes."""

from __future__ import annotations

import io
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from duemq.cli.options import Selection, Target
from duemq.cli.timers import timers_app
from duemq.cli.timers_decide import decide
from duemq.client.decisions import MessageSelection, PendingDecisions, combined
from duemq.net.decisions import DecisionResult
from duemq_common.errors import UsageError


def result(verdict: str, messages: int = 0, **more: int) -> DecisionResult:
    return DecisionResult("a", verdict, messages, **more)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Respond to each decision with the first item; append the requests after it."""
    found: list[Any] = [[result("done", 1)]]

    async def decide(
        self: PendingDecisions, action: str, named: MessageSelection, **more: int
    ) -> list[DecisionResult]:
        found.append((action, named, more))
        return found[0]

    monkeypatch.setattr(PendingDecisions, "decide", decide)
    return found


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["done"], 0),
        (["done", "already delivered"], 1),
        (["unknown"], 1),
        (["refused", "unknown"], 4),
    ],
)
def test_the_exit_code_shows_whether_all_was_done(
    requests: list[Any], verdicts: list[str], code: int
) -> None:
    requests[0] = [result(verdict) for verdict in verdicts]
    ran = CliRunner().invoke(timers_app, ["cancel", "--id", "a", "--json"])
    assert ran.exit_code == code
    shown = json.loads(ran.stdout)["results"]
    assert [one["verdict"] for one in shown] == verdicts


def test_what_is_requested(requests: list[Any], tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("b\nc\n")
    words = ["--id", "a", "--ids-from", str(tmp_path / "ids"), "--topic", "T", "--dry-run"]
    ran = CliRunner().invoke(timers_app, ["move", *words, "--at", "1700000000000"])
    assert ran.exit_code == 0, ran.output
    action, named, more = requests[1]
    assert (action, list(named.ids), named.topic) == ("move", ["a", "b", "c"], "T")
    assert callable(more.pop("progress"))
    assert more == {"dry_run": True, "deliver_ms": 1_700_000_000_000}
    assert "would move" in ran.stdout


def test_a_malformed_address_is_a_usage_error() -> None:
    words = ["cancel", "--id", "a", "--broker", "nowhere"]
    error = CliRunner().invoke(timers_app, words).exception
    assert isinstance(error, UsageError)
    assert str(error) == "'nowhere' is not host:port"


@pytest.mark.parametrize("words", [["cancel"], ["fire"], ["move", "--id", "a"]])
def test_nothing_named_is_a_usage_error(requests: list[Any], words: list[str]) -> None:
    assert isinstance(CliRunner().invoke(timers_app, words).exception, UsageError)


def test_a_selection_that_ends_before_it_begins_is_a_usage_error(
    requests: list[Any],
) -> None:
    words = ["cancel", "--topic", "T", "--from", "2027-01-01", "--to", "2026-01-01"]
    error = CliRunner().invoke(timers_app, words).exception
    assert isinstance(error, UsageError)
    assert str(error).startswith("--from 2027-01-01 is after --to 2026-01-01")


@pytest.mark.finding("B12")
@pytest.mark.parametrize(
    ("response", "code", "requested_for"),
    [("y\n", 0, [True, False]), ("\n", 1, [True]), ("", 1, [True])],
)
def test_a_whole_topic_needs_confirmation_at_a_terminal(
    requests: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    response: str,
    code: int,
    requested_for: list[bool],
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(response))
    target = Target(namesrv="", broker="127.0.0.1:1", as_json=True)
    with nullcontext() if code == 0 else pytest.raises(SystemExit, match=str(code)):
        decide("cancel", Selection(topic="T"), target)
    assert [more["dry_run"] for _, _, more in requests[1:]] == requested_for


@pytest.mark.parametrize(
    ("of_brokers", "expected"),
    [
        ([result("unknown"), result("done", 2, due_ms=7)], result("done", 2, due_ms=7)),
        ([result("done", 1, due_ms=9), result("done", 1, due_ms=7)], result("done", 2, due_ms=7)),
        ([result("refused", refused=1), result("done", 1)], result("refused", 1, refused=1)),
        ([result("already delivered"), result("unknown")], result("already delivered")),
        (
            [result("done", 1, due_ms=50, former_due_ms=9), result("unknown")],
            result("done", 1, due_ms=50, former_due_ms=9),
        ),
    ],
)
def test_answers_of_several_brokers_make_one(
    of_brokers: list[DecisionResult], expected: DecisionResult
) -> None:
    assert combined(of_brokers) == expected


@pytest.mark.finding("3U4")
def test_a_move_shows_the_new_and_the_former_due_time(requests: list[Any]) -> None:
    requests[0] = [result("done", 1, due_ms=1_700_000_002_000, former_due_ms=1_700_000_001_000)]
    words = ["move", "--id", "a", "--at", "1700000002000"]
    shown = CliRunner().invoke(timers_app, words, env={"COLUMNS": "200"}).stdout
    assert shown.index("due (UTC)") < shown.index("due before (UTC)")
    assert shown.index("22:13:22.000") < shown.index("22:13:21.000")
    [found] = json.loads(CliRunner().invoke(timers_app, [*words, "--json"]).stdout)["results"]
    assert (found["due_ms"], found["former_due_ms"]) == (1_700_000_002_000, 1_700_000_001_000)
