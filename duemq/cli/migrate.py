"""`duemq migrate` commands; each imports its modules when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import AsJson, Configuration, DryRun, Target
from duemq_common.errors import UsageError

migrate_app = group()

Levels = Annotated[
    list[int] | None,
    typer.Option("--level", "-l", help="Level; repeatable; default: all levels.", min=1),
]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; the migration continues in the broker.")
]


@command(migrate_app, example="migrate plan --level 4")
def plan(
    levels: Levels = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan without saving it.")
    ] = False,
    *,
    target: Target,
) -> None:
    """Count pending messages by level and show obstacles, without any change."""
    from duemq.cli.migrate_show import show_plan

    show_plan(levels or [], target, dry_run=dry_run)


@command(migrate_app, example="migrate start --level 4 --level 5")
def start(
    plan_id: Annotated[
        str,
        typer.Argument(
            metavar="[PLAN]", help="Saved plan; without it, --level names the levels of a new one."
        ),
    ] = "",
    levels: Levels = None,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="TOPIC=DELAY", help="Delay of one topic, as in orders=90s; repeatable."
        ),
    ] = None,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    *,
    target: Target,
) -> None:
    """Convert messages of levels, old and new, to timers. Exit code 1: a level was paused.

    Ctrl-C ends the display; the migration continues.
    """
    if not plan_id and not levels:
        raise UsageError(
            "no levels selected: give a plan of `duemq migrate plan`, or --level for each level"
        )
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
    cause: Annotated[str, typer.Option(help="Reason, shown by `migrate status`.")] = "",
    dry_run: DryRun = False,
    *,
    target: Target,
) -> None:
    """Pause until `resume`. New messages of started levels continue to become timers."""
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
    """Resume paused levels. Exit code 1: a level was paused again."""
    request = {"levels": levels or [], "dry_run": dry_run}
    _change("resume", request, target, wait=not no_wait)


@command(migrate_app, example="migrate status --follow")
def status(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Refresh until all levels are done or paused.")
    ] = False,
    *,
    target: Target,
) -> None:
    """Show the state of each level: messages moved and left, rate, lateness of deliveries."""
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
    """Return pending messages to their levels with unchanged due times, even from DONE levels."""
    request = {"levels": levels or [], "dry_run": dry_run}
    _change("rollback", request, target, wait=not no_wait)


@command(migrate_app, example="migrate verify")
def verify(
    levels: Levels = None,
    *,
    target: Target,
) -> None:
    """Compare counts and checksums of levels and timers. Exit code 1: they differ."""
    from duemq.cli.migrate_show import verify as verify_levels

    verify_levels(levels or [], target)


@command(migrate_app, example="migrate throttle --rate 5000")
def throttle(
    rate: Annotated[
        int | None, typer.Option(help="Maximum messages per second; 0: no limit.", min=0)
    ] = None,
    lateness: Annotated[
        int | None,
        typer.Option(help="Lateness (p99, ms) that slows migrations down; 0: no limit.", min=0),
    ] = None,
    factor: Annotated[
        int | None,
        typer.Option(
            help="The same limit, as a multiple of the p99 without a migration; 0: no limit.",
            min=0,
        ),
    ] = None,
    *,
    target: Target,
) -> None:
    """Change the rate of migrations, now and for all later runs.

    The values are saved in the configuration of the broker.
    """
    from duemq.cli.migrate_show import throttle as change_throttle

    values = {
        "migrationRate": rate,
        "migrationLatenessTargetMs": lateness,
        "migrationLatenessFactor": factor,
    }
    changes = {key: str(value) for key, value in values.items() if value is not None}
    change_throttle(changes, target)


@command(migrate_app, example="migrate history /data/store")
def history(
    store: Annotated[
        Path | None, typer.Argument(metavar="[STORE_DIR]", help="The store's directory.")
    ] = None,
    ledger: Annotated[
        str, typer.Option(metavar="URL", help="URL of the ledger, instead of STORE_DIR.")
    ] = "",
    run_id: Annotated[str, typer.Option("--run", metavar="RUN", help="Only this run.")] = "",
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an HTML page of --run, or of the newest run."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show past migrations from the ledger, without a broker."""
    from duemq.cli.migrate_history import history as show_history

    show_history(store=store, url=ledger, run_id=run_id, html=html, as_json=as_json)


@command(migrate_app, example="migrate offline /data/store --into /data/copy")
def offline(
    directory: Annotated[
        Path, typer.Argument(metavar="STORE_DIR", help="Store directory, of DueMQ or Apache.")
    ],
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Migrate a copy in this directory; the source stays unchanged."
        ),
    ] = None,
    levels: Levels = None,
    dry_run: DryRun = False,
    *,
    configuration: Configuration,
    as_json: AsJson = False,
) -> None:
    """Convert the levels of a stopped store to timers."""
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


def _change(action: str, request: dict[str, object], target: Target, *, wait: bool) -> None:
    from duemq.cli.migrate_show import change

    change(action, request, target, wait=wait)
