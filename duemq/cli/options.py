"""Options shared by commands, and the properties built from them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from message_store.config import Properties, read_properties
from message_store.errors import UsageError

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration file (broker.conf)."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override one key; repeatable."),
]
Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv", "-n", metavar="HOST:PORT", envvar="NAMESRV_ADDR", help="Name servers."
    ),
]
BrokerAddress = Annotated[
    str,
    typer.Option("--broker", "-b", metavar="HOST:PORT", help="A broker; else the name server's."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def collect_properties(
    file: Path | None, overrides: Iterable[str] | None, namesrv: str = ""
) -> Properties:
    """Return the properties of a file, the environment and the command line; later ones win.

    Raises:
        ConfigError: The file cannot be read or parsed.
        UsageError: An override is not `KEY=VALUE`.
    """
    properties = read_properties(file) if file else Properties()
    from_environment = os.environ.get("NAMESRV_ADDR", "")
    if from_environment and "namesrvAddr" not in properties:
        properties = properties.merged({"namesrvAddr": from_environment}, "NAMESRV_ADDR")
    for text in overrides or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: must be KEY=VALUE")
        properties = properties.merged({key.strip(): value.strip()}, "command line")
    if namesrv and namesrv != from_environment:
        properties = properties.merged({"namesrvAddr": namesrv}, "command line")
    return properties
