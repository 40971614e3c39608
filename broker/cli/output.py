"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_COLUMNS = 160


def print_json(value: Any) -> None:
    """Print one JSON document; non-ASCII text as it is."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2, default=str)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console; what is not a terminal gets wide lines."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_COLUMNS)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]] = ()) -> Table:
    """Return a Rich table; a column whose name starts with `#` is right-aligned."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        side: Literal["left", "right"] = "right" if column[:1] == "#" else "left"
        made.add_column(column.lstrip("#"), justify=side, overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made
