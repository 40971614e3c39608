"""Groups of commands that are imported when a command of them is called.

app.add_typer(typer.Typer(), name="timers", cls=LazyGroup, help=...)    imports nothing
duemq timers list                                                       imports duemq.cli.timers
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


class LazyGroup(TyperGroup):
    """Name and help of a group; its commands are in `<name>_app` of `duemq.cli.<name>`."""

    def load(self) -> TyperGroup:
        """Return the group with its commands."""
        module = import_module(f"duemq.cli.{self.name}")
        group = typer.main.get_group(getattr(module, f"{self.name}_app"))
        group.name, group.help = self.name, self.help
        return group

    def make_context(self, *args: Any, **named: Any) -> Any:
        """Return the context of the loaded group, which parses the arguments."""
        return self.load().make_context(*args, **named)
