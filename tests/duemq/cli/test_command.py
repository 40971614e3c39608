"""Option sets of commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from duemq.cli.app import app
from duemq.cli.command import command
from duemq.cli.groups import LazyGroup


@dataclass(frozen=True)
class Place:
    """Two options of several commands."""

    name: Annotated[str, typer.Argument(help="A name.")]
    port: Annotated[int, typer.Option("--port", "-p", min=1)] = 7


GROUP = typer.Typer()


@command(GROUP, example="show a --port 1")
def show(*, count: int = 1, place: Place) -> None:
    """Show a place."""
    typer.echo(f"{count} {place}")


@command(GROUP, example="other a")
def other(place: Place) -> None:
    """Show it in other words."""
    typer.echo(place.name)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["show", "a"], "1 Place(name='a', port=7)"),
        (["show", "a", "-p", "3", "--count", "2"], "2 Place(name='a', port=3)"),
        (["other", "b"], "b"),
    ],
)
def test_an_option_set_becomes_options(words: list[str], printed: str) -> None:
    assert CliRunner().invoke(GROUP, words).stdout.strip() == printed


@pytest.mark.parametrize("words", [["show"], ["show", "a", "--port", "0"]])
def test_the_options_of_a_set_are_checked(words: list[str]) -> None:
    assert CliRunner().invoke(GROUP, words).exit_code == 2


def test_help_ends_with_an_example() -> None:
    assert "Example: duemq show a --port 1" in CliRunner().invoke(GROUP, ["show", "--help"]).stdout


def commands(group: TyperGroup) -> Iterator[TyperCommand]:
    for item in getattr(group, "commands", {}).values():
        child = item.loaded if isinstance(item, LazyGroup) else item
        if isinstance(child, TyperCommand):
            yield child
        else:
            yield from commands(child)


@pytest.mark.parametrize(
    "item", list(commands(typer.main.get_command(app))), ids=lambda item: item.name
)
def test_every_command_has_an_example(item: TyperCommand) -> None:
    assert (item.epilog or "").startswith("Example: duemq ")


DESTRUCTIVE = {"delete", "reset", "resend", "cancel", "move", "fire"}


@pytest.mark.parametrize(
    "item",
    [each for each in commands(typer.main.get_command(app)) if each.name in DESTRUCTIVE],
    ids=lambda item: item.name,
)
def test_a_command_that_cannot_be_undone_has_a_confirmation_and_a_dry_run(
    item: TyperCommand,
) -> None:
    options = {option for param in item.params for option in param.opts}
    assert {"--yes", "--dry-run"} <= options
