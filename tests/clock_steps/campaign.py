"""Campaign of clock steps: a broker under each pattern of steps, in each phase of its run.

python -m tests.clock_steps.campaign            all runs; one JSON line for each
python -m tests.clock_steps.campaign --page     all runs; the page about them
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.clock_steps.steps_rig import (
    CHECK_MS,
    HOLD_MS,
    LATE_MS_MAX,
    LOCK_MS,
    TICK_MS,
    StepsRig,
)
from tests.storage_faults.campaign import ChildFailed, in_child

HOUR_MS: Final = 3_600_000
YEARS_MS: Final = 10 * 365 * 24 * HOUR_MS
SHORT_STROBES, STROBES = 12, 90  # more than the segments of a level
PATTERNS: Final = {
    "no step": [0],
    "1 hour forward": [HOUR_MS],
    "1 hour back": [-HOUR_MS],
    "10 years forward": [YEARS_MS],
    "10 years back": [-YEARS_MS],
    "10 years forward and back": [YEARS_MS, -YEARS_MS],
    "10 years back and forward": [-YEARS_MS, YEARS_MS],
    "half a second back, often": [-500] * SHORT_STROBES,
    "strobing by 1 hour": [HOUR_MS, -HOUR_MS] * SHORT_STROBES,
    "strobing by 1 hour, long": [HOUR_MS, -HOUR_MS] * STROBES,
    "strobing by 10 years": [YEARS_MS, -YEARS_MS] * SHORT_STROBES,
}
"""Steps of the wall clock in ms, by name of the pattern."""
PHASES: Final = ("running", "stopped", "killed", "cut")
RUN_S_MAX, FIRST_RUN_S_MAX = 300, 500
DRAIN_TICKS: Final = 45  # longer than any delay


async def run_steps(home: Path, pattern: str, phase: str) -> dict[str, Any]:
    """Run one pattern of steps in one phase; return the report."""
    rig = StepsRig(home)
    await rig.start()
    for _ in range(4):
        await rig.send_mix()
        await rig.tick()
    await rig.send_half()
    held = rig.hold_pull() if phase == "running" else -1
    locked = await rig.lock("one")
    if not locked:
        rig.problem("a free queue was not locked")
    await step_clock(rig, pattern, phase)
    if phase == "running":
        await check_leases(rig, held)
    await rig.run_jobs()
    for _ in range(3):
        await rig.send_mix()
        await rig.tick()
    await drain(rig, pattern)
    await rig.rig.stop()
    rig.check_end()
    return {
        "pattern": pattern,
        "phase": phase,
        "problems": rig.report.problems,
        "sent": rig.report.sent,
        "late_ms": rig.report.late_ms,
    }


async def step_clock(rig: StepsRig, pattern: str, phase: str) -> None:
    """Step the clock while the broker runs, or while it is stopped."""
    if phase != "running":
        await rig.end(phase)
        broker, rig.rig.broker = rig.rig.broker, None
        for step_ms in PATTERNS[pattern]:
            await rig.step(step_ms)
        rig.rig.broker = broker
        await rig.start()
        await rig.settle()
        return
    for step_ms in PATTERNS[pattern]:
        await rig.step(step_ms)
        await rig.send_few()


async def check_leases(rig: StepsRig, held: int) -> None:
    """Check durations measured by elapsed time: long polls, locks, and transaction checks."""
    client = rig.rig.client
    if held in client.responses:
        rig.problem("a held pull ended at the step")
    if await rig.lock("two"):
        rig.problem("a lock ended at the step")
    checks = rig.checks
    for _ in range(CHECK_MS // TICK_MS):
        await rig.tick()
    if rig.checks == checks:
        rig.problem(f"no check-back within {CHECK_MS} ms after the step")
    for _ in range(HOLD_MS // TICK_MS):
        await rig.tick()
    if held not in client.responses:
        rig.problem(f"a pull held for {HOLD_MS} ms was not answered")
    await rig.tick(LOCK_MS)
    if not await rig.lock("two"):
        rig.problem("a lock was not released in time")


async def drain(rig: StepsRig, pattern: str) -> None:
    """Advance past all due times: first near ones, then by as much as the clock was set back."""
    for _ in range(DRAIN_TICKS):
        await rig.tick()
    near_ms = rig.clock.now_ms()
    for body, sent in list(rig.pending.items()):
        if sent.due_ms <= near_ms:
            rig.problem(f"{body} is stuck: due at {sent.due_ms}, now {near_ms}")
    left_ms = max((sent.due_ms for sent in rig.pending.values()), default=near_ms) - near_ms
    if left_ms > 0:
        await rig.tick(left_ms)
        for _ in range(3):
            await rig.tick()


def run_apart(pattern: str, phase: str, seconds: float = RUN_S_MAX) -> dict[str, Any]:
    """Run one combination in a separate process."""
    home = Path(tempfile.mkdtemp(prefix="clock-steps-"))
    try:
        return in_child(lambda: asyncio.run(run_steps(home, pattern, phase)), seconds)
    except ChildFailed as error:
        return {"pattern": pattern, "phase": phase, "problems": [str(error)], "late_ms": 0}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def runs() -> Iterator[dict[str, Any]]:
    """Yield the reports of all combinations."""
    seconds = FIRST_RUN_S_MAX
    for pattern in PATTERNS:
        for phase in PHASES:
            yield run_apart(pattern, phase, seconds)
            seconds = RUN_S_MAX


HEAD = f"""# Clock steps

<!-- Generated by `python -m tests.clock_steps.campaign --page`, except the last section. -->

`python -m tests.clock_steps.campaign` steps the wall clock of a whole broker on a fake clock while
messages of levels, timers, half messages, a held pull and a queue lock are pending: while it runs,
and between a stop, a kill or a power cut and the next start. Messages are sent before, between and
after the steps; then the clock runs on until everything is due.
**{{broken}} of {{count}} runs broke a promise.**

- No message is readable before its due time on the clock that the broker had when it was accepted.
- Each message is delivered once. It is late by at most {LATE_MS_MAX} ms of the campaign's clock
  ticks, counted from the time at which the clock shows its due time and stays there.
- After a step back, a message waits until the clock shows its due time again.
- Held pulls, queue locks, connections of silent clients and registrations at the name server last
  as long as the time that passes, whatever the wall clock shows. A half message that was stored
  after what the clock shows now is checked at once.
- Retention compares the wall clock with the time of a file: after a step forward by more than
  `fileReservedTime`, delivered messages are removed. Messages that are pending are not.
- Periodic jobs start again after a step back: they do not pause for as long as the step.
- A message that was popped before a step back is visible again when its invisible time has passed
  once more, counted from the step; after a step that is shorter than the invisible time, when the
  clock shows its end. Its checkpoint and acknowledgements are delivered to the revive
  topic at once, so that they pin no log files. Acknowledgements count as before, and a change of
  the invisible time begins at the present time. After a step forward again, the time of the pop
  counts. In FIFO groups, the block of a queue ends at the step. Apache's broker keeps messages
  invisible, and queues blocked, until the clock shows the end of the invisible time again.

The last four columns are the largest lateness in ms, by when the steps came.

| steps | {" | ".join(PHASES)} |
|---|{"---|" * len(PHASES)}
"""


def page(reports: list[dict[str, Any]]) -> str:
    """Return the page about the reports of all runs."""
    broken = sum(bool(report["problems"]) for report in reports)
    lines = HEAD.format(broken=broken, count=len(reports))
    for pattern in PATTERNS:
        mine = {report["phase"]: report for report in reports if report["pattern"] == pattern}
        cells = [
            "broken" if mine[phase]["problems"] else str(mine[phase]["late_ms"]) for phase in PHASES
        ]
        lines += f"| {pattern} | {' | '.join(cells)} |\n"
    return lines


def main(words: list[str]) -> int:
    """Run the campaign; return 1 if a run has problems."""
    parser = argparse.ArgumentParser(prog="clock_steps", description=(__doc__ or ""))
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(words)
    reports = []
    for report in runs():
        reports.append(report)
        if not options.page:
            sys.stdout.write(json.dumps(report) + "\n")
            sys.stdout.flush()
    if options.page:
        sys.stdout.write(page(reports))
    return 1 if any(report["problems"] for report in reports) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
