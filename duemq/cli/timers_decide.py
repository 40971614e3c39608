"""`duemq timers cancel`, `move` and `fire`: decisions about pending messages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from duemq.cli.options import AsJson, BrokerAddress, Namesrv
from message_store.errors import UsageError

IDS_FILE_BYTES_MAX = 64 << 20

Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Message id: unique key or offset id; repeatable."),
]
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="KEY", help="One of the KEYS; repeatable.")
]
Handles = Annotated[
    list[str] | None,
    typer.Option("--handle", metavar="HANDLE", help="Recall handle of a send; repeatable."),
]
IdsFile = Annotated[
    Path | None, typer.Option("--ids-from", metavar="FILE", help="File with a message id a line.")
]
Topic = Annotated[str, typer.Option(metavar="TOPIC", help="Only of this topic; alone: all of it.")]
From = Annotated[
    str, typer.Option("--from", metavar="TIME", help="Due then or later: 2026-11-22T10:00, +2h, ms")
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="Due before.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="A whole topic without a question.")]


def add_commands(group: typer.Typer) -> None:
    """Add the three commands to the group of timers."""
    group.command()(cancel)
    group.command()(move)
    group.command()(fire)


def cancel(
    ids: Ids = None,
    keys: Keys = None,
    handles: Handles = None,
    ids_file: IdsFile = None,
    topic: Topic = "",
    from_time: From = "",
    to_time: To = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """Cancel pending messages. Exit code 1: some were not pending; 4: some were refused."""
    named = _named(ids, keys, handles, ids_file, topic, from_time, to_time)
    _decide("cancel", named, namesrv, broker, dry_run=dry_run, as_json=as_json, confirmed=yes)


def move(
    ids: Ids = None,
    keys: Keys = None,
    handles: Handles = None,
    ids_file: IdsFile = None,
    topic: Topic = "",
    from_time: From = "",
    to_time: To = "",
    at_time: Annotated[
        str, typer.Option("--at", metavar="TIME", help="The new time: 2026-11-22T10:00, +2h, or ms")
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """Move pending messages to another time. Exit code 1: some not pending; 4: some refused."""
    if not at_time:
        raise UsageError("no time given: add --at, for example --at +2h")
    named = _named(ids, keys, handles, ids_file, topic, from_time, to_time)
    _decide(
        "move", named, namesrv, broker, dry_run=dry_run, as_json=as_json, confirmed=yes,
        deliver_ms=_ms(at_time, 0),
    )  # fmt: skip


def fire(
    ids: Ids = None,
    keys: Keys = None,
    handles: Handles = None,
    ids_file: IdsFile = None,
    topic: Topic = "",
    from_time: From = "",
    to_time: To = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """Deliver pending messages now. Exit code 1: some were not pending; 4: some were refused."""
    named = _named(ids, keys, handles, ids_file, topic, from_time, to_time)
    _decide("fire", named, namesrv, broker, dry_run=dry_run, as_json=as_json, confirmed=yes)


def _named(
    ids: list[str] | None,
    keys: list[str] | None,
    handles: list[str] | None,
    ids_file: Path | None,
    topic: str,
    from_time: str,
    to_time: str,
) -> Any:
    from duemq.cli.decision_client import Named
    from duemq.messages.decide import TIME_MS_MAX

    return Named(
        ids=[*(ids or []), *(_read_ids(ids_file) if ids_file else [])],
        keys=keys or [],
        handles=handles or [],
        topic=topic,
        from_ms=_ms(from_time, 0),
        until_ms=_ms(to_time, TIME_MS_MAX),
    )


def _read_ids(path: Path) -> list[str]:
    try:
        if path.stat().st_size > IDS_FILE_BYTES_MAX:
            raise UsageError(f"{path} has more than {IDS_FILE_BYTES_MAX} bytes")
        return path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _ms(text: str, default: int) -> int:
    from duemq.cli.times import parse_time
    from message_store.clock import SystemClock

    return parse_time(text, SystemClock().now_ms()) if text else default


def _decide(
    action: str, named: Any, namesrv: str, broker: str, *, dry_run: bool, as_json: bool, **more: Any
) -> None:
    from duemq.cli.decision_client import decide_and_show

    decide_and_show(
        action, named, namesrv=namesrv, broker=broker, dry_run=dry_run, as_json=as_json, **more
    )
