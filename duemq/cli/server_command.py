"""Command lines of `duemq broker` and `duemq namesrv`, run without Typer.

Typer converts options with Pydantic. A server would keep both in its memory, and each start would
wait for their import. A command line that is not exactly options with their values (help, an
error, short options in one word) is left to Typer, whose commands are in `app.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from duemq.cli.cache_home import use_writable_cache
from duemq.cli.exits import errors_become_exits
from duemq.cli.output import notice
from duemq.cli.properties import collect_properties, properties_of_broker

BROKER, NAMESRV = "broker", "namesrv"
AS_JSON = "--json"
VALUES = {"--config": "config", "-c": "config", "--set": "set", "-s": "set", "--logging": "logging"}
VALUES_OF = {NAMESRV: VALUES, BROKER: VALUES | {"--namesrv": "namesrv", "-n": "namesrv"}}


class ServerCommand(NamedTuple):
    """Parsed command line of a server."""

    name: str
    config: Path | None
    overrides: tuple[str, ...]
    namesrv: str
    logging: Path | None
    as_json: bool

    def run(self) -> None:
        """Run the server until a signal arrives."""
        with errors_become_exits():
            if text := use_writable_cache():
                notice(text)
            from duemq.cli.serve import serve_broker, serve_namesrv

            if self.name == BROKER:
                read = partial(properties_of_broker, self.config, self.overrides, self.namesrv)
                serve_broker(self.config, read, self.logging, as_json=self.as_json)
            else:
                properties = collect_properties(self.config, self.overrides)
                serve_namesrv(self.config, properties, self.logging, as_json=self.as_json)


def server_command(arguments: Sequence[str]) -> ServerCommand | None:
    """Return the command of a server; None: the command line is for Typer."""
    name = arguments[0] if arguments else ""
    if name not in VALUES_OF:
        return None
    values: dict[str, list[str]] = {field: [] for field in VALUES_OF[BROKER].values()}
    as_json = False
    words = iter(arguments[1:])
    for word in words:
        if word == AS_JSON:
            as_json = True
            continue
        option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        field = VALUES_OF[name].get(option)
        if not equals:
            value = next(words, "")
        if field is None or not value or value.startswith("-"):
            return None
        values[field].append(value)
    config, namesrv, logging = (
        (values[field] or [""])[-1] for field in ("config", "namesrv", "logging")
    )
    return ServerCommand(
        name,
        Path(config) if config else None,
        tuple(values["set"]),
        namesrv,
        Path(logging) if logging else None,
        as_json,
    )
