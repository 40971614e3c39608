"""`duemq timers compact`: requests, waits, output, exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from duemq.cli.timers import timers_app
from duemq.client import Admin, Client
from duemq.client.errors import Unsupported
from duemq_common.codes import RequestCode
from duemq_common.request import Response

PLAN = {
    "dry_run": False,
    "started": True,
    "running": False,
    "messages": 1_200,
    "bytes": 4_096,
    "frees": 1 << 30,
    "until": 1 << 30,
    "blocked_by": "",
    "why": "",
}


@pytest.fixture
def broker(
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """A broker that answers with `plan` and, one after the other, `views`."""
    state: dict[str, Any] = {
        "plan": dict(PLAN),
        "views": [{"running": False, "blocked_by": "", "why": ""}],
        "requests": [],
    }

    async def call(
        self: Client,
        address: str,
        code: int,
        fields: object = None,
        body: bytes = b"",
        *,
        timeout_s: float = 0.0,
    ) -> Response:
        state["requests"].append((address, code, json.loads(body)))
        return Response(state.get("code", 0), body=json.dumps(state["plan"]).encode())

    async def view(
        self: Admin, address: str, name: str, **fields: object
    ) -> dict[str, dict[str, bool | str]]:
        return {"compaction": state["views"].pop(0)}

    monkeypatch.setattr(Client, "call", call)
    monkeypatch.setattr(Admin, "view", view)
    monkeypatch.setattr("duemq.cli.timers_compact.POLL_INTERVAL_S", 0)
    return state


def run(*words: str) -> Result:
    return CliRunner().invoke(timers_app, ["compact", "--broker", "b:1", *words])


def test_it_waits_until_the_broker_is_done(
    broker: dict[str, Any],
) -> None:
    running = {"running": True, "blocked_by": "", "why": ""}
    broker["views"] = [
        running,
        running,
        {"running": False, "blocked_by": "left", "why": "3 are left"},
    ]
    ran = run()
    assert ran.exit_code == 0, ran.output
    assert broker["requests"] == [("b:1", RequestCode.COMPACT_TIMERS, {"dry_run": False})]
    assert broker["views"] == []
    for text in ("1,200 messages copied", "4.0 KiB", "1.0 GiB", "3 are left"):
        assert text in ran.stdout


def test_a_dry_run_waits_for_nothing(
    broker: dict[str, Any],
) -> None:
    broker["plan"] |= {"started": False, "dry_run": True}
    ran = run("--dry-run", "--json")
    assert ran.exit_code == 0
    shown = json.loads(ran.stdout)
    assert shown["dry_run"]
    assert shown["brokers"][0]["messages"] == 1_200
    assert broker["requests"][0][2] == {"dry_run": True}


@pytest.mark.parametrize(
    ("blocked_by", "code"),
    [("no_room", 4), ("refused", 4), ("behind", 4), ("too_full", 0), ("", 0)],
)
def test_the_exit_code_shows_whether_it_can(
    broker: dict[str, Any],
    blocked_by: str,
    code: int,
) -> None:
    broker["plan"] |= {"started": False, "blocked_by": blocked_by, "why": blocked_by and "because"}
    ran = run()
    assert ran.exit_code == code
    assert ("because" in ran.stdout) == bool(blocked_by)


def test_at_work_already(
    broker: dict[str, Any],
) -> None:
    broker["plan"] |= {"started": False, "running": True}
    assert "already running" in run().stdout


def test_another_broker_reports_it(
    broker: dict[str, Any],
) -> None:
    broker["code"] = 3
    assert isinstance(run().exception, Unsupported)
