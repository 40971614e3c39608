"""`duemq context` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from duemq.cli.command import command
from duemq.cli.contexts import ContextOptions, read_contexts
from duemq.cli.groups import group
from duemq.cli.options import AsJson, Target
from duemq.cli.output import print_json, print_table, printable
from duemq_common.errors import UsageError

context_app = group()
Name = Annotated[str, typer.Argument(metavar="NAME", help="Context.", show_default=False)]
COLUMNS = ("", "context", "servers", "TLS", "user", "secret file")


@command(context_app, example="context add prod --namesrv mq1:9876 --tls")
def add(
    name: Name,
    namesrv: Annotated[
        str, typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Name servers.")
    ] = "",
    broker: Annotated[
        str, typer.Option("--broker", "-b", metavar="HOST:PORT", help="One broker.")
    ] = "",
    tls: Annotated[bool, typer.Option("--tls", help="Connect by TLS.")] = False,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Authorities that verify servers (PEM).")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate with its private key (PEM).")
    ] = None,
    access_key: Annotated[
        str, typer.Option(metavar="USER", help="User that signs the requests.")
    ] = "",
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the secret of the user.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a context with this name.")
    ] = False,
) -> None:
    """Add a context; the first one becomes the current one."""
    if bool(namesrv) == bool(broker):
        raise UsageError("give the servers of the context: either --namesrv or --broker")
    if bool(access_key) != (secret_file is not None):
        raise UsageError("give both --access-key and --secret-file, or neither")
    Target(namesrv=namesrv, broker=broker).admin()  # checks the addresses
    contexts = read_contexts()
    if name in contexts.by_name and not replace:
        raise UsageError(f"context {name} exists: change it with --replace")
    contexts.by_name[name] = ContextOptions(
        namesrv=namesrv,
        broker=broker,
        tls=tls,
        tls_ca=_absolute(tls_ca),
        tls_cert=_absolute(tls_cert),
        access_key=access_key,
        secret_file=_absolute(secret_file),
    )
    contexts.current = contexts.current or name
    contexts.save()
    print(printable(f"context {name} added; the current one is {contexts.current}"))


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


@command(context_app, "list", example="context list")
def list_contexts(as_json: AsJson = False) -> None:
    """Show the contexts; an asterisk marks the current one."""
    contexts = read_contexts()
    if as_json:
        print_json(msgspec.to_builtins(contexts))
        return
    rows = [
        (
            "*" if name == contexts.current else "",
            name,
            options.broker or options.namesrv,
            "yes" if options.tls or options.tls_ca or options.tls_cert else "",
            options.access_key,
            options.secret_file,
        )
        for name, options in sorted(contexts.by_name.items())
    ]
    print_table("" if rows else "no contexts: add one with duemq context add", COLUMNS, rows)


@command(context_app, example="context use prod")
def use(name: Name) -> None:
    """Use a context for commands that name no servers."""
    contexts = read_contexts()
    contexts.get(name)
    contexts.current = name
    contexts.save()
    print(printable(f"the current context is {name}"))


@command(context_app, example="context remove prod")
def remove(name: Name) -> None:
    """Remove a context."""
    contexts = read_contexts()
    contexts.get(name)
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = ""
    contexts.save()
    print(printable(f"context {name} removed"))
