"""Output of `duemq migrate`: plans, steps and the state of each level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from duemq.cli.exits import Exit
from duemq.cli.messages import table_time
from duemq.cli.migration_master import MigrationMaster, run
from duemq.cli.options import Target
from duemq.cli.output import console, notice, plural, print_json, print_table
from duemq.cli.times import duration_text
from duemq.client.admin.migrations import LevelMigration, MigrationResult, MigrationStatus
from duemq_common.errors import UsageError
from duemq_common.text import binary_size

if TYPE_CHECKING:
    from rich.progress import TaskID

PLAN_COLUMNS: Final = (
    "#level",
    "#delay",
    "#messages",
    "#overdue",
    "#bytes in the log",
    "first due (UTC)",
    "last due (UTC)",
    "#timer units",
    "#takes about",
)
PLAN_OPTIONAL: Final = ("#timer units", "#bytes in the log", "first due (UTC)", "last due (UTC)")
MOVING: Final = ("routing", "draining", "verifying", "rolling_back")
STATUS_COLUMNS: Final = (
    "#level",
    "state",
    "#moved",
    "#left",
    "#returned",
    "new ones",
    "remark",
)


def show_plan(levels: list[int], target: Target, *, dry_run: bool) -> None:
    """Make a plan and print it."""

    async def work(master: MigrationMaster) -> MigrationResult:
        return await master.migrate("plan", levels=levels, dry_run=dry_run)

    plan = run(target, work)["plan"]
    if target.as_json:
        print_json(plan)
    else:
        print_plan(plan, dry_run=dry_run)


def print_plan(plan: dict[str, Any], *, dry_run: bool) -> None:
    """Print a plan and its obstacles."""
    saved = "not saved" if dry_run else f"saved as {plan['plan_id']}"
    total = sum(level["pending"] for level in plan["levels"])
    title = f"{total:,} {plural(total, 'message')} would become timers; {saved}"
    shown = [level for level in plan["levels"] if level["pending"] or len(plan["levels"]) == 1]
    rows = [_plan_row(level) for level in shown]
    print_table(title, PLAN_COLUMNS, rows, optional=PLAN_OPTIONAL)
    if empty := len(plan["levels"]) - len(shown):
        console().print(f"{empty} empty {plural(empty, 'level')} not shown; --json shows all")
    for item in plan["obstacles"]:
        where = f"level {item['level']}: " if item["level"] is not None else ""
        console().print(f"{'cannot start: ' if item['blocks'] else ''}{where}{item['text']}")


def _plan_row(level: dict[str, Any]) -> tuple[object, ...]:
    first, last = level["first_due_ms"], level["last_due_ms"]
    return (
        level["level"],
        duration_text(level["delay_ms"]),
        f"{level['pending']:,}",
        f"{level['overdue']:,}" if level["overdue"] else "",
        binary_size(level["pending_bytes"]),
        table_time(first)[:19],
        table_time(last)[:19],
        binary_size(level["unit_bytes"]),
        duration_text(level["estimate_ms"]),
    )


def change(action: str, request: dict[str, Any], target: Target, *, wait: bool) -> None:
    """Send a command; with `wait`, wait until no level moves. Exit code 1: a level is paused."""

    async def work(master: MigrationMaster) -> MigrationResult:
        done = await master.migrate(action, **request)
        if wait and not done["dry_run"]:
            with progress(quiet=target.as_json) as shown:
                done["status"] = await master.wait_until_settled(done["levels"], shown)
        return done

    done = run(target, work)
    if target.as_json:
        print_json(done)
    else:
        _print_done(done)
    levels = done["status"]["levels"] if "status" in done else []
    if any(item["paused"] for item in levels if item["level"] in done["levels"]):
        raise SystemExit(int(Exit.FOUND_FAULT))


def _print_done(done: MigrationResult) -> None:
    levels = done["levels"]
    names = ", ".join(str(level) for level in levels) or "no level"
    named = f"{plural(len(levels), 'level')} {names}" if levels else names
    would = "dry run, would apply to " if done["dry_run"] else ""
    migration = f" (migration {done['migration']})" if done["migration"] else ""
    console().print(f"{done['action']}: {would}{named}{migration}")
    for level, text in done["remarks"].items():
        console().print(f"level {level}: {text}")
    if "status" in done:
        print_status(done["status"])


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[MigrationStatus], None]]:
    """Yield a function that shows a status as progress bars, or as lines without a terminal."""
    if quiet:
        yield lambda status: None
        return
    if not console(stderr=True).is_terminal:
        yield ProgressLines().show
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console(stderr=True)) as bars:
        tasks: dict[int, TaskID] = {}

        def show(status: MigrationStatus) -> None:
            for item in status["levels"]:
                if item["state"] not in MOVING:
                    if item["level"] in tasks:
                        bars.update(tasks[item["level"]], completed=1, total=1, text=item["state"])
                    continue
                task = tasks.get(item["level"])
                if task is None:
                    name = f"level {item['level']}"
                    task = tasks[item["level"]] = bars.add_task(name, text="")
                moved = _moved(item)
                text = _progress_text(item, status)
                bars.update(
                    task, completed=moved, total=max(moved + item["remaining"], 1), text=text
                )

        yield show


class ProgressLines:
    """Progress on a pipe or in a file: a line per level at each change of its state or percentage
    by ten.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[str, int]] = {}

    def show(self, status: MigrationStatus) -> None:
        """Print a line for each level that has advanced since the last call."""
        for item in status["levels"]:
            moved = _moved(item)
            tenths = moved * 10 // max(moved + item["remaining"], 1)
            now = (item["state"], tenths)
            before = self._last.get(item["level"])
            if now != before and (item["state"] in MOVING or before is not None):
                self._last[item["level"]] = now
                notice(f"level {item['level']}: {_progress_text(item, status)}")


def _moved(item: LevelMigration) -> int:
    moved: int = item["returned"] if item["state"] == "rolling_back" else item["moved"]
    return moved


def _progress_text(item: LevelMigration, status: MigrationStatus) -> str:
    late = status["late_p99_ms"]
    text = f"{item['state']} {_moved(item):,} moved, {item['remaining']:,} left"
    text += f", {status['rate_per_s']:,.0f}/s"
    text += "" if late is None else f", late {late} ms"
    return text + (f" ({item['blocked_by'] or item['cause']})" if item["blocked_by"] else "")


def show_status(target: Target, *, follow: bool) -> None:
    """Print the state of a broker's levels; with `follow` until no level moves."""

    async def work(master: MigrationMaster) -> MigrationStatus:
        status = await master.status()
        if follow:
            with progress(quiet=target.as_json) as shown:
                status = await master.wait_until_settled(status["active"], shown)
        return status

    status = run(target, work)
    if target.as_json:
        print_json(status)
    else:
        print_status(status)


def print_status(status: MigrationStatus) -> None:
    """Print a status: a table of levels, then rate and ledger."""
    rows = [_status_row(item) for item in status["levels"]]
    print_table(
        "migrations by level",
        STATUS_COLUMNS,
        rows,
        optional=("#returned",),
        nothing="no level has a migration",
    )
    throttle, ledger = status["throttle"], status["ledger"]
    rate = f"{throttle['rate_per_s']:,}/s" if throttle["rate_per_s"] else "any rate"
    late = status["late_p99_ms"]
    console().print(
        f"{status['rate_per_s']:,.0f} messages/s now ({rate} allowed); deliveries late p99: "
        f"{'none yet' if late is None else f'{late} ms'}, target {throttle['target_now_ms']} ms; "
        f"each step moves {throttle['batch']:,} messages and pauses {throttle['pause_ms']} ms"
    )
    if ledger["trouble"]:
        console().print(f"ledger: {ledger['trouble']}")


def _status_row(item: LevelMigration) -> tuple[object, ...]:
    state = item["state"].replace("_", " ") + (" (paused)" if item["paused"] else "")
    return (
        item["level"],
        state,
        f"{item['moved']:,}",
        f"{item['remaining']:,}",
        f"{item['returned']:,}",
        "timers" if item["routed"] else "level",
        item["cause"] or item["blocked_by"],
    )


def verify(levels: list[int], target: Target) -> None:
    """Count level messages and timers. Exit code 1: they differ."""

    async def work(master: MigrationMaster) -> MigrationResult:
        return await master.migrate("verify", levels=levels)

    done = run(target, work)
    if target.as_json:
        print_json(done)
    else:
        columns = (
            "#level",
            "#moved",
            "#returned",
            "#pending as timers",
            "#settled",
            "#removed since",
            "verdict",
        )
        rows = [
            (
                item["level"],
                f"{item['transferred']:,}",
                f"{item['returned']:,}",
                f"{item['timers_pending']:,}",
                f"{item['settled']:,}",
                f"{item['removed']:,}",
                "agree" if item["right"] else item["text"],
            )
            for item in done["verified"]
        ]
        print_table("levels and timers", columns, rows, nothing="no level has a migration")
    if not done["right"]:
        raise SystemExit(int(Exit.FOUND_FAULT))


def throttle(changes: dict[str, str], target: Target) -> None:
    """Change rate and lateness limits of migrations, permanently."""
    if not changes:
        raise UsageError("nothing to change: give --rate, --lateness or --factor")

    async def work(master: MigrationMaster) -> MigrationStatus:
        await master.status()  # a replica refuses it before its configuration is changed
        await master.admin.update_broker_config(master.address, changes)
        return await master.status()

    status = run(target, work)
    if target.as_json:
        print_json(status)
        return
    print_status(status)
    keys = ", ".join(f"{key}={value}" for key, value in changes.items())
    console().print(f"saved in the broker's configuration: {keys}")
