"""Decisions about pending messages, and their results as shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from duemq.cli.confirmation import confirm
from duemq.cli.exits import Exit
from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import is_live, plural, print_json, print_table, progress_bars
from duemq.client.decisions import MessageSelection, PendingDecisions
from duemq.net.decisions import DecisionResult
from duemq_common.errors import UsageError

COLUMNS = ("name", "verdict", "#messages", "due (UTC)", "remark")
MOVE_COLUMNS = ("name", "verdict", "#messages", "due (UTC)", "due before (UTC)", "remark")
SHOWN_CHARACTERS = 60


def decide_and_show(
    action: str,
    selection: MessageSelection,
    target: Target,
    *,
    dry_run: bool,
    confirmed: bool = True,
    deliver_ms: int | None = None,
) -> None:
    """Send a decision, print the result for each name, and exit.

    Exit code 0: all done; 1: some were already delivered or are unknown; 4: some were refused.

    Args:
        deliver_ms: New due time of a move in ms since the epoch.
        confirmed: Skip the confirmation for a whole topic.
    """
    if not (selection.ids or selection.keys or selection.handles or selection.topic):
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

    if not (confirmed or dry_run or selection.ids or selection.keys or selection.handles):
        topic = f"{action} --topic {selection.topic}"
        confirm(question, f"{topic} applies to all pending messages of the topic")
    results = asyncio.run(run(dry_run))
    verdicts = {result.verdict for result in results}
    for result in results:
        result.verdict = (
            f"would {action}" if dry_run and result.verdict == "done" else (result.verdict)
        )
    if target.as_json:
        print_json({"dry_run": dry_run, "results": msgspec.to_builtins(results)})
    else:
        count = sum(result.messages for result in results)
        title = f"{action}: {count:,} {plural(count, 'message')}"
        title += ", dry run: nothing was changed" if dry_run else ""
        columns = MOVE_COLUMNS if action == "move" else COLUMNS
        print_table(title, columns, [_row(result, columns) for result in results])
    if "refused" in verdicts:
        raise SystemExit(int(Exit.REFUSED))
    if verdicts - {"done"}:
        raise SystemExit(int(Exit.FOUND_FAULT))


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
