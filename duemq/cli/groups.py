"""Groups of commands; a lazy group imports its commands when one of them is called.

group("Show single messages.")                                        a group of commands
app.add_typer(group(), name="timers", cls=LazyGroup, help=...)        imports nothing
duemq timers list                                                     imports duemq.cli.timers
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


class Group(TyperGroup):
    """A group whose help has the first sentences of its commands in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and the help of the commands."""
        rows = [(name, self.commands[name].help or "") for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text.partition("\n\n")[0]) for name, text in rows])


class LazyGroup(Group):
    """Name and help of a group; its commands are in `<name>_app` of `duemq.cli.<name>`."""

    @cached_property
    def loaded(self) -> TyperGroup:
        """The group with its commands."""
        module = import_module(f"duemq.cli.{self.name}")
        loaded = typer.main.get_group(getattr(module, f"{self.name}_app"))
        loaded.name, loaded.help = self.name, self.help
        return loaded

    def make_context(self, *args: Any, **named: Any) -> Any:
        """Return the context of the loaded group, which parses the arguments."""
        return self.loaded.make_context(*args, **named)


def group(text: str = "", **options: Any) -> typer.Typer:
    """Return an empty group.

    Its help is plain text: importing Rich takes longer than all other work of `duemq --help`.

    Args:
        text: Help of the group.
        options: Options of `typer.Typer`.
    """
    defaults: dict[str, Any] = {"cls": Group, "no_args_is_help": True, "rich_markup_mode": None}
    return typer.Typer(help=text, **(defaults | options))
