"""Decisions of `duemq timers cancel`, `move` and `fire`, and their results as shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from duemq.cli.confirmation import confirm
from duemq.cli.exits import Exit
from duemq.cli.messages import table_time
from duemq.cli.options import Selection, Target
from duemq.cli.output import is_live, plural, print_json, print_table, progress_bars
from duemq.cli.times import parse_time
from duemq.client.decisions import MessageSelection, PendingDecisions
from duemq.net.decisions import TIME_MS_MAX, DecisionResult
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError

IDS_FILE_BYTES_MAX: Final = 64 << 20
COLUMNS = ("name", "verdict", "#messages", "due (UTC)", "remark")
MOVE_COLUMNS = ("name", "verdict", "#messages", "due (UTC)", "due before (UTC)", "remark")
SHOWN_CHARACTERS = 60


def decide(action: str, options: Selection, target: Target, *, at_time: str = "") -> None:
    """Send a decision, print the result for each name, and exit.

    Exit code 0: all done; 1: some were already delivered or are unknown; 4: some were refused.

    Args:
        at_time: New due time of a move.
    """
    now_ms = SystemClock().now_ms()
    deliver_ms = parse_time(at_time, now_ms) if at_time else None
    selection = _selection(options, now_ms)
    has_names = bool(selection.ids or selection.keys or selection.handles)
    if not (has_names or selection.topic):
        raise UsageError("no messages selected: give --id, --key, --handle or --topic")

    async def run(dry_run: bool) -> list[DecisionResult]:
        with progress_bars(shown=is_live() and not target.as_json) as show:
            progress = partial(show, action)
            async with target.client() as client:
                return await PendingDecisions(client=client).decide(
                    action, selection, dry_run=dry_run, deliver_ms=deliver_ms, progress=progress
                )

    def question() -> str:
        count = sum(result.messages for result in asyncio.run(run(True)))
        return f"{action} {count:,} pending {plural(count, 'message')} of topic {selection.topic}"

    if not (options.yes or options.dry_run or has_names):
        topic = f"{action} --topic {selection.topic}"
        confirm(question, f"{topic} applies to all pending messages of the topic")
    results = asyncio.run(run(options.dry_run))
    verdicts = {result.verdict for result in results}
    _print(action, results, target, dry_run=options.dry_run)
    if "refused" in verdicts:
        raise SystemExit(int(Exit.REFUSED))
    if verdicts - {"done"}:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _selection(options: Selection, now_ms: int) -> MessageSelection:
    """Return the selection of options.

    Raises:
        UsageError: The file of ids cannot be read, or a time is malformed or after the end.
    """
    from_ms = parse_time(options.from_time, now_ms) if options.from_time else 0
    until_ms = parse_time(options.to_time, now_ms) if options.to_time else TIME_MS_MAX
    if from_ms > until_ms:
        wrong = f"--from {options.from_time} is after --to {options.to_time}"
        raise UsageError(f"{wrong}, so no message is selected")
    return MessageSelection(
        ids=[*(options.ids or []), *(_read_ids(options.ids_file) if options.ids_file else [])],
        keys=options.keys or [],
        handles=options.handles or [],
        topic=options.topic,
        from_ms=from_ms,
        until_ms=until_ms,
    )


def _read_ids(path: Path) -> list[str]:
    try:
        if path.stat().st_size > IDS_FILE_BYTES_MAX:
            raise UsageError(f"{path} has more than {IDS_FILE_BYTES_MAX} bytes")
        return path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _print(action: str, results: list[DecisionResult], target: Target, *, dry_run: bool) -> None:
    for result in results:
        if dry_run and result.verdict == "done":
            result.verdict = f"would {action}"
    if target.as_json:
        print_json({"dry_run": dry_run, "results": msgspec.to_builtins(results)})
        return
    count = sum(result.messages for result in results)
    title = f"{action}: {count:,} {plural(count, 'message')}"
    title += ", dry run: nothing was changed" if dry_run else ""
    columns = MOVE_COLUMNS if action == "move" else COLUMNS
    print_table(title, columns, [_row(result, columns) for result in results])


def _row(result: DecisionResult, columns: Sequence[str]) -> tuple[object, ...]:
    name = result.name
    if len(name) > SHOWN_CHARACTERS:
        name = name[: SHOWN_CHARACTERS - 3] + "..."
    former_ms = result.former_due_ms
    cells = {
        "name": name,
        "verdict": result.verdict,
        "#messages": f"{result.messages:,}",
        "due (UTC)": table_time(result.due_ms if result.due_ms >= 0 else None),
        "due before (UTC)": table_time(former_ms if former_ms >= 0 else None),
        "remark": result.remark,
    }
    return tuple(cells[column] for column in columns)
