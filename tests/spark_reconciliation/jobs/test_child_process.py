"""An audit in a child process: its arguments, its output and its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.config import ReconcileConfig
from spark_reconciliation.jobs import child_process
from spark_reconciliation.jobs.child_process import (
    COULD_NOT_RUN,
    Result,
    command_of,
    result_of,
    run,
    without_password,
)
from spark_reconciliation.scan.levels import levels_ms_of
from spark_reconciliation.submit import main, parser
from tests.support.wait_until import until

REPORTED = {"exit_code": 1, "audit_id": "a", "verdicts": {"lost": 2}, "complete": True, "more": [1]}
LONG_S = 600.0
STARTED_S = (3, 12, 60)  # in which a program starts, perhaps on a busy machine


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_the_command_is_accepted_by_the_program() -> None:
    config = ReconcileConfig(report="/r.html", ledger_url="sqlite:////l", cores=3, late_ms=7)
    words = command_of(config, "/store", "1s 2h")
    given = parser().parse_args(words[words.index("spark_reconciliation.submit") + 1 :])
    assert given.idle
    assert given.with_parent
    assert (given.stores, given.cores, given.late) == (["/store"], 3, 7)
    assert (given.levels, str(given.report), given.ledger) == ("1s 2h", "/r.html", "sqlite:////l")
    bare = parser().parse_args(["/store"])
    assert not bare.idle
    assert bare.cores == 0


@pytest.mark.finding("E11")
@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("postgresql://u:p4%40ss@db:5432/x?a=b", "postgresql://u@db:5432/x?a=b", "p4@ss"),
        ("postgresql+psycopg://u:p4ss@db/x", "postgresql+psycopg://u@db/x", "p4ss"),
        ("postgresql://u@db/x", "postgresql://u@db/x", None),
        ("sqlite:////l", "sqlite:////l", None),
        ("no url", "no url", None),
    ],
)
def test_a_command_line_shows_no_password(url: str, shown: str, password: str | None) -> None:
    words = command_of(ReconcileConfig(ledger_url=url), "/store", "")
    bare, environment = without_password(words)
    assert bare == [shown if word == url else word for word in words]
    assert environment == ({} if password is None else {"PGPASSWORD": password})


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        ("1s 5m", (1_000, 300_000)),
        ("", ()),
        ("2h 1d", (7_200_000, 86_400_000)),
        ("-5s  +2s", (0, 2_000)),
    ],
)
def test_levels_are_those_of_the_broker(text: str, delays: tuple[int, ...]) -> None:
    assert levels_ms_of(text) == delays


@pytest.mark.parametrize("text", ["5", "s", "1s 5x", "--1s"])
def test_illegal_levels(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of levels"):
        levels_ms_of(text)


def test_the_result_is_its_output() -> None:
    program = f"print('noise'); print({json.dumps(REPORTED)!r}); raise SystemExit(1)"
    found = asyncio.run(run(python(program), seconds_max=LONG_S))
    assert found == Result(exit_code=1, audit_id="a", complete=True, verdicts={"lost": 2})


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("raise SystemExit('no room')", "ended with code 1 without a result: no room"),
        ("import os; os.kill(os.getpid(), 9)", "ended with code -9"),
        ("print('{')", "ended with code 0 without a result: no output"),
        ("print('[]')", "without a result"),
    ],
)
def test_without_output_it_failed(program: str, why: str) -> None:
    found = asyncio.run(run(python(program), seconds_max=LONG_S))
    assert found.exit_code == COULD_NOT_RUN
    assert why in found.why


def test_a_command_that_cannot_start_failed() -> None:
    found = asyncio.run(run(["/nowhere/python"], seconds_max=1))
    assert (found.exit_code, "cannot be started" in found.why) == (COULD_NOT_RUN, True)


def test_its_output_is_limited() -> None:
    program = f"print('x' * 3_000_000); print({json.dumps(REPORTED)!r})"
    assert asyncio.run(run(python(program), seconds_max=LONG_S)).verdicts == {"lost": 2}
    assert len(result_of(1, b"", b"y" * 10_000_000).why) < 2_000


NEST = """
import os, subprocess, sys
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
Path(sys.argv[1]).write_text(str(child.pid))
print("here", flush=True)
child.wait()
"""


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def is_noted(note: Path) -> bool:
    """Return whether the program has started its child, and noted the child's process id."""
    return note.exists() and bool(note.read_text())


def wait_for_end(note: Path) -> None:
    """Wait for the end of a killed process, which needs a processor for it."""
    pid = int(note.read_text())
    until(lambda: is_gone(pid), seconds=60, what="the child is gone")


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the end of a process as long as it takes, so that no loop closes before."""
    monkeypatch.setattr(child_process, "END_S", 60)


@pytest.mark.usefixtures("busy_machine")
def test_a_slow_audit_is_killed_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    command = [*python(NEST), str(note)]
    for seconds in STARTED_S:
        found = asyncio.run(run(command, seconds_max=seconds))
        assert found.exit_code == COULD_NOT_RUN
        assert f"longer than {seconds / 60:g} minutes" in found.why
        if is_noted(note):
            break
    wait_for_end(note)


@pytest.mark.finding("3D6")
def test_a_stop_does_not_wait_for_a_process_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopped process, or one that gets no processor time, even to be killed."""
    signals = list[int]()

    async def start(*command: str, **options: object) -> Unending:
        return Unending()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(child_process, "END_S", 2 * child_process.LOOK_S)
    monkeypatch.setattr(os, "killpg", lambda group, number: signals.append(number))
    found = asyncio.run(asyncio.wait_for(run(["audit"], seconds_max=0), 60))
    assert "longer than" in found.why
    assert signals == [signal.SIGTERM, 0, 0, signal.SIGKILL]


class Unending:
    """Process that does not end."""

    pid, returncode = 1 << 30, None

    def __init__(self) -> None:
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0


@pytest.mark.usefixtures("busy_machine")
def test_it_ends_with_the_broker(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    async def ended() -> None:
        task = asyncio.create_task(run([*python(NEST), str(note)], seconds_max=LONG_S))
        while not is_noted(note):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ended())
    wait_for_end(note)


PRIORITY = """
import json, os
from spark_reconciliation.submit import set_idle_priority
set_idle_priority()
verdicts = {"nice": os.nice(0), "policy": os.sched_getscheduler(0)}
print(json.dumps({"exit_code": 0, "verdicts": verdicts}))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux only")
def test_it_has_the_lowest_priority() -> None:
    found = asyncio.run(run(python(PRIORITY), seconds_max=LONG_S))
    assert found.verdicts == {"nice": 19, "policy": os.SCHED_IDLE}


PARENT = """
import sys
from spark_reconciliation.submit import end_with_parent
end_with_parent()
print("here", flush=True)
import threading
threading.Event().wait()
"""


def test_it_ends_when_its_input_is_closed() -> None:
    import subprocess

    process = subprocess.Popen(
        python(PARENT), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"here\n"
    process.stdin.close()
    assert process.wait(timeout=60) == -9
    process.stdout.close()


def test_a_program_that_cannot_run_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = f"sqlite:///{tmp_path / 'l.sqlite'}"
    assert main([str(tmp_path), "--ledger", ledger, "--made-by", "me"]) == COULD_NOT_RUN
    reported = json.loads(capsys.readouterr().out)
    assert reported["exit_code"] == COULD_NOT_RUN
    assert "is not a store" in reported["why"]
    from spark_reconciliation.jobs.audit_ledger import AuditLedger

    [record] = AuditLedger.open_existing(ledger).audits()
    assert (record.exit_code, record.made_by, record.why) == (COULD_NOT_RUN, "me", reported["why"])
    assert record.audit_id == reported["audit_id"]


def test_a_given_ledger_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/s", "--ledger", "mysql://x/y"]) == COULD_NOT_RUN
    assert "this kind of database is not supported" in json.loads(capsys.readouterr().out)["why"]
