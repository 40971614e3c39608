"""`duemq migrate offline`: convert the levels of a stopped store to timers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from duemq.cli.migrate_show import print_plan
from duemq.cli.migration_master import operator
from duemq.cli.output import console, print_json, progress_bars
from duemq_common.clock import SystemClock
from duemq_common.config import Properties
from duemq_migration.steps.offline import NOT_COPIED, OfflineResult, migrate_offline
from message_store.store_copy import copy_store


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
        copy_store(directory, into, left_out=NOT_COPIED)
        root = into
    with progress_bars(shown=not as_json) as show:
        done = migrate_offline(
            root,
            levels,
            properties,
            operator=operator(),
            now_ms=SystemClock().now_ms(),
            dry_run=dry_run,
            shown=lambda level, moved, left: show(f"level {level}", moved, max(moved + left, 1)),
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
