"""`duemq timers cancel`, `move` and `fire`: decisions about pending messages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duemq.cli.command import command
from duemq.cli.options import Selection, Target
from duemq_common.errors import UsageError

IDS_FILE_BYTES_MAX = 64 << 20


EXAMPLES = {
    "cancel": "timers cancel --key order-17",
    "move": "timers move --id 7F00000100002A9F0000000000000000 --at +2h",
    "fire": "timers fire --topic orders --to +5m --dry-run",
}


def add_commands(group: typer.Typer) -> None:
    """Add the three commands to the group of timers."""
    for function in (cancel, move, fire):
        command(group, example=EXAMPLES[function.__name__])(function)


def cancel(selection: Selection, target: Target) -> None:
    """Cancel pending messages. Exit code 1: some were not pending; 4: some were refused."""
    _decide("cancel", selection, target)


def move(
    *,
    selection: Selection,
    at_time: Annotated[
        str, typer.Option("--at", metavar="TIME", help="The new time: 2026-11-22T10:00, +2h, or ms")
    ] = "",
    target: Target,
) -> None:
    """Move pending messages to another time. Exit code 1: some not pending; 4: some refused."""
    if not at_time:
        raise UsageError("no time given: add --at, for example --at +2h")
    _decide("move", selection, target, _ms(at_time, 0))


def fire(selection: Selection, target: Target) -> None:
    """Deliver pending messages now. Exit code 1: some were not pending; 4: some were refused."""
    _decide("fire", selection, target)


def _read_ids(path: Path) -> list[str]:
    try:
        if path.stat().st_size > IDS_FILE_BYTES_MAX:
            raise UsageError(f"{path} has more than {IDS_FILE_BYTES_MAX} bytes")
        return path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _ms(text: str, default: int) -> int:
    from duemq.cli.times import parse_time
    from duemq_common.clock import SystemClock

    return parse_time(text, SystemClock().now_ms()) if text else default


def _decide(
    action: str, selection: Selection, target: Target, deliver_ms: int | None = None
) -> None:
    from duemq.cli.decide import decide_and_show
    from duemq.client.decisions import MessageSelection
    from duemq.net.decisions import TIME_MS_MAX

    file_ids = _read_ids(selection.ids_file) if selection.ids_file else []
    from_ms, until_ms = _ms(selection.from_time, 0), _ms(selection.to_time, TIME_MS_MAX)
    if from_ms > until_ms:
        wrong = f"--from {selection.from_time} is after --to {selection.to_time}"
        raise UsageError(f"{wrong}, so no message is selected")
    named = MessageSelection(
        ids=[*(selection.ids or []), *file_ids],
        keys=selection.keys or [],
        handles=selection.handles or [],
        topic=selection.topic,
        from_ms=from_ms,
        until_ms=until_ms,
    )
    decide_and_show(
        action,
        named,
        target,
        dry_run=selection.dry_run,
        confirmed=selection.yes,
        deliver_ms=deliver_ms,
    )
