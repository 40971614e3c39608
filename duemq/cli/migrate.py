"""The commands of `duemq migrate`. Each imports its modules when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from duemq.cli.command import command
from duemq.cli.options import AsJson, Configuration, DryRun, Target
from message_store.errors import UsageError

migrate_app = typer.Typer(
    no_args_is_help=True, help="Make timers of level messages while the broker runs, and back."
)

Levels = Annotated[
    list[int] | None, typer.Option("--level", "-l", help="A level; repeatable; else all.", min=1)
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return at once; it goes on by itself.")]


@command(migrate_app, example="migrate plan --level 4")
def plan(
    levels: Levels = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do not save the plan.")] = False,
    *,
    target: Target,
) -> None:
    """Count pending messages by level, and show what is in the way. Nothing is changed."""
    from duemq.cli.migrate_show import show_plan

    show_plan(levels or [], target, dry_run=dry_run)


@command(migrate_app, example="migrate start --level 4 --level 5")
def start(
    plan_id: Annotated[
        str, typer.Argument(metavar="[PLAN]", help="A saved plan; else one is made now.")
    ] = "",
    levels: Levels = None,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="TOPIC=DELAY", help="Another delay of one topic, as in T=90s."
        ),
    ] = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    *,
    target: Target,
) -> None:
    """Make timers of levels, and of their new messages. Exit code 1: a level was stopped.

    Ctrl-C ends the display only.
    """
    if not plan_id and not levels:
        raise UsageError("name a plan, or levels with --level")
    request = {
        "plan_id": plan_id,
        "levels": levels or [],
        "rules": _rules(rules),
        "dry_run": dry_run,
    }
    _change("start", request, target, wait=not no_wait)


@command(migrate_app, example='migrate pause --level 4 --cause "disk check"')
def pause(
    levels: Levels = None,
    cause: Annotated[str, typer.Option(help="Why, for those who look.")] = "",
    dry_run: DryRun = False,
    *,
    target: Target,
) -> None:
    """Move nothing until `resume`. New messages of started levels stay timers."""
    request = {"levels": levels or [], "cause": cause, "dry_run": dry_run}
    _change("pause", request, target, wait=False)


@command(migrate_app, example="migrate resume")
def resume(
    levels: Levels = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    *,
    target: Target,
) -> None:
    """Go on with what is paused. Exit code 1: a level was stopped again."""
    request = {"levels": levels or [], "dry_run": dry_run}
    _change("resume", request, target, wait=not no_wait)


@command(migrate_app, example="migrate status --follow")
def status(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until all are at rest.")] = False,
    *,
    target: Target,
) -> None:
    """Show where each level stands: moved, left, rate, how late deliveries are."""
    from duemq.cli.migrate_show import show_status

    show_status(target, follow=follow)


@command(migrate_app, example="migrate rollback --level 4")
def rollback(
    levels: Levels = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    *,
    target: Target,
) -> None:
    """Return pending messages to their levels, due times as they are, after DONE too."""
    request = {"levels": levels or [], "dry_run": dry_run}
    _change("rollback", request, target, wait=not no_wait)


@command(migrate_app, example="migrate verify")
def verify(
    levels: Levels = None,
    *,
    target: Target,
) -> None:
    """Count both sides and compare checksums. Exit code 1: they differ."""
    from duemq.cli.migrate_show import verify as verify_levels

    verify_levels(levels or [], target)


@command(migrate_app, example="migrate throttle --rate 5000")
def throttle(
    rate: Annotated[
        int | None, typer.Option(help="Messages a second at most; 0: no limit.", min=0)
    ] = None,
    lateness: Annotated[
        int | None, typer.Option(help="Give way above this p99 in ms; 0: never.", min=0)
    ] = None,
    factor: Annotated[
        int | None,
        typer.Option(help="Give way above so many times the p99 without it; 0: never.", min=0),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(help="When to work, as in '01:00-05:00 Europe/Berlin'; '': always."),
    ] = None,
    *,
    target: Target,
) -> None:
    """Change how fast and when a broker migrates: at once, and for all later runs.

    These are keys of its configuration; they stay when the run is over.
    """
    from duemq.cli.migrate_show import throttle as change_throttle

    wanted = {
        "migrationRate": rate,
        "migrationLatenessTargetMs": lateness,
        "migrationLatenessFactor": factor,
        "migrationWindow": window,
    }
    changes = {key: str(value) for key, value in wanted.items() if value is not None}
    change_throttle(changes, target)


@command(migrate_app, example="migrate history /data/store")
def history(
    store: Annotated[
        Path | None, typer.Argument(metavar="[STORE_DIR]", help="The store's directory.")
    ] = None,
    ledger: Annotated[str, typer.Option(metavar="URL", help="Another ledger, by URL.")] = "",
    run_id: Annotated[str, typer.Option("--run", metavar="RUN", help="One run.")] = "",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page of one run, else the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell what was migrated, of the ledger; no broker is asked."""
    from duemq.cli.migrate_history import history as tell

    tell(store=store, url=ledger, run_id=run_id, html=html, as_json=as_json)


@command(migrate_app, example="migrate offline /data/store --into /data/copy")
def offline(
    directory: Annotated[
        Path, typer.Argument(metavar="STORE_DIR", help="Store directory, of DueMQ or Apache.")
    ],
    into: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Work on a copy here; the source stays.")
    ] = None,
    levels: Levels = None,
    dry_run: DryRun = False,
    *,
    configuration: Configuration,
    as_json: AsJson = False,
) -> None:
    """Make timers of all levels of a store that no broker uses."""
    from duemq.cli.migrate_offline import migrate_store

    properties = configuration.properties()
    migrate_store(directory, into, levels or [], properties, dry_run=dry_run, as_json=as_json)


def _rules(words: list[str] | None) -> dict[str, int]:
    from duemq.cli.times import parse_time

    rules: dict[str, int] = {}
    for word in words or []:
        topic, equals, delay = word.partition("=")
        if not equals or not topic:
            raise UsageError(f"--map {word}: must be TOPIC=DELAY, as in orders=90s")
        rules[topic] = parse_time(f"+{delay.removeprefix('+')}", 0)
    return rules


def _change(action: str, request: dict[str, Any], target: Target, *, wait: bool) -> None:
    from duemq.cli.migrate_show import change

    change(action, request, target, wait=wait)
