"""Commands with shared option sets: a dataclass parameter expands to one option per field.

@dataclass(frozen=True)
class Target:
    broker: Annotated[str, typer.Option("--broker")] = ""

@command(app, example="levels --broker 127.0.0.1:10911")
def levels(target: Target) -> None: ...      # duemq levels --broker HOST:PORT

A command with `--json` also has `--output table|json|yaml`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator

import typer

from duemq.cli.options import AsJson, Output
from duemq.cli.output import OutputFormat, data_format

Command = Callable[..., None]


def command(
    group: typer.Typer, name: str | None = None, *, example: str
) -> Callable[[Command], Command]:
    """Return a decorator that adds a function to `group` as a command.

    Args:
        example: Command line without `duemq`, shown below the help.
    """

    def add(function: Command) -> Command:
        group.command(name, epilog=f"Example: duemq {example}")(expanded(function))
        return function

    return add


def expanded(function: Command) -> Command:
    """Return a function that takes the fields of each option set instead of the dataclass."""
    hints = typing.get_type_hints(function, include_extras=True)
    sets: dict[str, typing.Any] = {
        name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
    }

    parameters = list(_parameters(function, hints))
    if any(item.annotation == AsJson for item in parameters):
        parameters.append(_parameter("output", None, Output))

    @functools.wraps(function)
    def run(**values: object) -> None:
        output = values.pop("output", None)
        if isinstance(output, OutputFormat):
            values["as_json"] = output is not OutputFormat.TABLE
        for name, kind in sets.items():
            own = {item.name: values.pop(item.name) for item in dataclasses.fields(kind)}
            values[name] = kind(**own)
        with data_format(output if isinstance(output, OutputFormat) else OutputFormat.JSON):
            function(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in parameters}
    del run.__wrapped__
    return run


def _parameters(function: Command, hints: dict[str, typing.Any]) -> Iterator[inspect.Parameter]:
    for name, declared in inspect.signature(function).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            yield _parameter(name, declared.default, kind)
            continue
        fields = typing.get_type_hints(kind, include_extras=True)
        for item in dataclasses.fields(kind):
            absent = item.default is dataclasses.MISSING
            default = inspect.Parameter.empty if absent else item.default
            yield _parameter(item.name, default, fields[item.name])


def _parameter(name: str, default: object, annotation: object) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)
