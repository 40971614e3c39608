"""`duemq migrate offline`: convert the levels of a stopped store to timers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duemq.cli.migrate_show import print_plan
from duemq.cli.migration_client import operator
from duemq.cli.output import console, print_json
from duemq_common.clock import SystemClock
from duemq_common.config import Properties
from duemq_migration.steps.offline import OfflineResult, copy_store, migrate_offline

if TYPE_CHECKING:
    from rich.progress import TaskID


def migrate_store(
    directory: Path,
    into: Path | None,
    levels: list[int],
    properties: Properties,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Migrate a store or a copy of it, and print the result."""
    root = directory
    if into is not None and not dry_run:
        copy_store(directory, into)
        root = into
    with _progress(quiet=as_json) as shown:
        done = migrate_offline(
            root,
            levels,
            properties,
            operator=operator(),
            now_ms=SystemClock().now_ms(),
            dry_run=dry_run,
            shown=shown,
        )
    if as_json:
        print_json(_plain(root, done))
        return
    if dry_run:
        print_plan(msgspec.to_builtins(done.plan), dry_run=True)
        return
    total = sum(done.moved.values())
    console().print(f"{root}: {total:,} messages are timers now; {done.migration}")


def _plain(root: Path, done: OfflineResult) -> dict[str, object]:
    return {
        "store": str(root),
        "migration": done.migration,
        "moved": {str(level): count for level, count in done.moved.items()},
        "plan": msgspec.to_builtins(replace(done.plan)),
    }


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int, int], None]]:
    if quiet:
        yield lambda level, moved, left: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bars:
        tasks: dict[int, TaskID] = {}

        def show(level: int, moved: int, left: int) -> None:
            if level not in tasks:
                tasks[level] = bars.add_task(f"level {level}")
            bars.update(tasks[level], completed=moved, total=max(moved + left, 1))

        yield show
