"""Audit in a child process with the lowest priority.

    broker --start--> idle processor and disk --> python -m spark_reconciliation.submit ... --idle
           <--one line of JSON, exit code--

The broker keeps the standard input of the process open, so that the audit and all its processes end
with the broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from spark_reconciliation.config import ReconcileConfig

LEDGER_OPTION: Final = "--ledger"
COULD_NOT_RUN: Final = 2
OUTPUT_BYTES_MAX: Final = 1 << 20
ERROR_CHARS_MAX: Final = 1_000
MINUTE_S: Final = 60
END_S: Final = 1  # a stop and a change of role of the broker wait for it, twice at most
LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Outcome of an audit.

    Attributes:
        exit_code: 0 clean, 1 findings, 2 it could not run; `why` has the cause.
        verdicts: Number of messages by verdict.
        lateness_ms: p50, p99, max.
        offenders: Some messages of each finding and reason.
    """

    exit_code: int
    audit_id: str = ""
    why: str = ""
    complete: bool = False
    verdicts: dict[str, int] = field(default_factory=dict)
    lateness_ms: dict[str, int | None] = field(default_factory=dict)
    offenders: list[dict[str, object]] = field(default_factory=list)


def command_of(config: ReconcileConfig, store: str, levels: str) -> list[str]:
    """Return the command line of an audit of a store.

    Args:
        levels: messageDelayLevel of the broker, "" if it is not set.
    """
    words = [sys.executable, "-m", "spark_reconciliation.submit", store, "--idle", "--with-parent"]
    words += ["--cores", str(config.cores), "--memory", config.memory, "--made-by", "cron"]
    words += ["--late", str(config.late_ms), "--as-of", "now"]
    for name, value in (
        ("--levels", levels),
        ("--report", config.report),
        (LEDGER_OPTION, config.ledger_url),
    ):
        words += [name, value] if value else []
    quiet = shutil.which("ionice")
    return [quiet, "-c", "3", *words] if quiet else words


def without_password(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return a command without the ledger's password, and the environment with it.

    Every user of the machine can read a command line. libpq takes the password from PGPASSWORD.
    """
    words = list(command)
    if LEDGER_OPTION not in words[:-1]:
        return words, {}
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    position = words.index(LEDGER_OPTION) + 1
    try:
        url = make_url(words[position])
    except ArgumentError:
        return words, {}
    if not url.password:
        return words, {}
    words[position] = url._replace(password=None).render_as_string(hide_password=False)
    return words, {"PGPASSWORD": str(url.password)}


async def run(command: Sequence[str], *, seconds_max: float) -> Result:
    """Run an audit, up to `seconds_max`; on return or cancellation, its processes are killed."""
    pipe = asyncio.subprocess.PIPE
    command, secrets = without_password(command)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **secrets},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            limit=OUTPUT_BYTES_MAX,
        )
    except OSError as error:
        return Result(exit_code=COULD_NOT_RUN, why=f"it cannot be started: {error}")
    try:
        async with asyncio.timeout(seconds_max):
            assert process.stdout is not None
            assert process.stderr is not None
            output, errors = await asyncio.gather(_all(process.stdout), _all(process.stderr))
            code = await process.wait()
    except TimeoutError:
        minutes = seconds_max / MINUTE_S
        return Result(exit_code=COULD_NOT_RUN, why=f"it took longer than {minutes:g} minutes")
    finally:
        await _end(process)
    return result_of(code, output, errors)


async def _all(stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end and return the last part, of bounded size."""
    kept = b""
    while part := await stream.read(1 << 16):
        kept = (kept + part)[-OUTPUT_BYTES_MAX:]
    return kept


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process if it is running, and the processes that it started.

    On a busy machine, even a killed process of the lowest priority needs seconds to end.
    """
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        for _ in range(round(END_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            os.killpg(process.pid, 0)  # raises once no process is left
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_S)


def result_of(code: int, output: bytes, errors: bytes) -> Result:
    """Return the result that a process printed; without one, the audit could not run."""
    lines = output.decode("utf-8", "replace").strip().splitlines()
    try:
        response = json.loads(lines[-1])
        names = ("audit_id", "why", "complete", "verdicts", "lateness_ms", "offenders")
        fields = {name: response[name] for name in names if name in response}
        return Result(exit_code=int(response["exit_code"]), **fields)
    except (IndexError, ValueError, LookupError, TypeError):
        text = errors.decode("utf-8", "replace").strip()[-ERROR_CHARS_MAX:]
        reason = f"it ended with code {code} without a result: {text or 'no output'}"
        return Result(exit_code=COULD_NOT_RUN, why=reason)
