"""Options of `duemq schedule create`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class Spec:
    """Times and message of a new schedule."""

    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Topic of the messages.")] = ""
    body: Annotated[str, typer.Option(metavar="TEXT", help="Body of the messages.")] = ""
    cron: Annotated[
        str,
        typer.Option(
            metavar="EXPRESSION",
            help='"0 9 * * MON", 6 fields with seconds first, or @daily; several: separated by ;',
        ),
    ] = ""
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin.")
    ] = "UTC"
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="Interval instead of --cron: 90s, 1h30m.")
    ] = ""
    every_days: Annotated[
        int,
        typer.Option(help="Keep the times of --cron on every n-th date only, from --start.", min=0),
    ] = 0
    phase: Annotated[
        str, typer.Option(metavar="DURATION", help="Offset of the interval, from 1970 in UTC.")
    ] = ""
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DATE", help="No occurrence on this date, or at times of this cron; repeatable."
        ),
    ] = None
    start: Annotated[
        str, typer.Option(metavar="TIME", help="First time: 2026-11-22T10:00+01:00, +2h, or ms.")
    ] = ""
    end: Annotated[str, typer.Option(metavar="TIME", help="Last time.")] = ""
    jitter: Annotated[
        str, typer.Option(metavar="DURATION", help="Delay each occurrence by up to this time.")
    ] = ""
    catch_up: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Skip occurrences that are later than this after an outage; default: a year.",
        ),
    ] = ""
    overlap: Annotated[
        str,
        typer.Option(metavar="RULE", help="Overdue occurrences: all, or only the latest."),
    ] = "all"
    tag: Annotated[str, typer.Option(help="Tag of the messages.")] = ""
    key: Annotated[str, typer.Option(help="Keys of the messages, separated by blanks.")] = ""
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="User property; repeatable."),
    ] = None
