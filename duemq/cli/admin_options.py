"""Options of the commands for topics, groups and dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

Update = Annotated[
    bool, typer.Option("--update", help="Change it if it exists with other settings.")
]


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Settings of a topic; those that are not given stay, or are those of a new topic."""

    queues: Annotated[
        int | None, typer.Option(help="Queues to read and to write; new: 8.", min=1, max=1 << 16)
    ] = None
    read_queues: Annotated[
        int | None, typer.Option(help="Queues that consumers read.", min=0, max=1 << 16)
    ] = None
    write_queues: Annotated[
        int | None, typer.Option(help="Queues that producers send to.", min=0, max=1 << 16)
    ] = None
    permission: Annotated[
        str, typer.Option(metavar="RW|R|W|-", help="What clients may do: read, write.")
    ] = ""
    kind: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="message.type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED.",
        ),
    ] = ""
    attributes: Annotated[
        list[str] | None,
        typer.Option("--attribute", metavar="NAME=VALUE", help="Another attribute; repeatable."),
    ] = None


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Settings of a group; those that are not given stay, or are those of a new group."""

    retries: Annotated[
        int | None,
        typer.Option(help="Retries before a message is a dead letter; new: 16.", min=0, max=1_000),
    ] = None
    retry_queues: Annotated[
        int | None, typer.Option(help="Queues of the retry topic; new: 1.", min=0, max=1 << 16)
    ] = None
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether the group may read.")
    ] = None
    broadcast: Annotated[
        bool | None,
        typer.Option(
            "--broadcast/--no-broadcast", help="Whether members in broadcasting mode may read."
        ),
    ] = None
    ordered: Annotated[
        bool | None,
        typer.Option("--ordered/--unordered", help="Whether v5 clients get messages in order."),
    ] = None
    from_first: Annotated[
        bool | None,
        typer.Option(
            "--from-first/--from-last",
            help="Whether a new group begins with the first message where the broker decides.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class UndeliveredOptions:
    """Selection of messages in quarantine or dead letters."""

    names: Annotated[
        list[str] | None,
        typer.Option(
            "--id", metavar="NAME", help="Unique id, or offset as listed, BROKER/17. Repeatable."
        ),
    ] = None
    from_topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Only messages of this topic.")
    ] = ""
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Earliest store time: 2026-11-22T10:00, or ms.")
    ] = ""
    until: Annotated[str, typer.Option(metavar="TIME", help="Latest store time, exclusive.")] = ""
