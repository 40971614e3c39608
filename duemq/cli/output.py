"""Output of commands: tables and lines for users, JSON or YAML for programs.

Control characters in bodies, keys, topics and remarks are escaped, so that message content cannot
control the terminal.
"""

from __future__ import annotations

import json
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import TaskID
    from rich.table import Table

PLAIN_COLUMNS = 160
UNLIMITED_COLUMNS = 10_000
# DEL, C1 control characters, line and paragraph separators, marks that reorder text
_UNSAFE_IN_JSON = "\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[\x00-\x1f{_UNSAFE_IN_JSON}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class OutputFormat(StrEnum):
    """Format of the output of commands that show data."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


_format: ContextVar[OutputFormat] = ContextVar("format", default=OutputFormat.JSON)


@contextmanager
def data_format(value: OutputFormat) -> Iterator[None]:
    """Print data as JSON or as YAML within the block."""
    token = _format.set(value)
    try:
        yield
    finally:
        _format.reset(token)


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text with its control characters escaped.

    Args:
        lines: Whether to keep line ends and tabs.
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if lines and character in "\n\t":
            return character
        number = ord(character)
        return _SHORT.get(character) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")

    return _UNSAFE.sub(escape, text)


def print_json(value: object) -> None:
    """Print one indented JSON document."""
    _print_json(value, indent=2)


def print_json_line(value: object) -> None:
    """Print one JSON document on one line, and flush."""
    _print_json(value, indent=None)


def _print_json(value: object, *, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)
    if _format.get() is OutputFormat.YAML:
        _print_yaml(json.loads(text), separated=indent is None)
        return
    # JSON escapes C0 characters only
    text = re.sub(f"[{_UNSAFE_IN_JSON}]", lambda match: f"\\u{ord(match[0]):04x}", text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _print_yaml(value: object, *, separated: bool) -> None:
    """Print one YAML document; several ones are separated."""
    import yaml

    text = yaml.safe_dump(value, allow_unicode=True, sort_keys=False)
    if re.search(f"[{_UNSAFE_IN_JSON}]", text):
        text = yaml.safe_dump(value, sort_keys=False)  # escapes all characters beyond ASCII
    sys.stdout.write(f"---\n{text}" if separated else text)
    sys.stdout.flush()


def _plain(value: object) -> object:
    """Return a value that JSON does not have as one that it has."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return dict(value) if isinstance(value, Mapping) else str(value)


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console; lines are wide unless the output is a terminal."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Let `errors_become_exits` handle it."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return Piped(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_COLUMNS)


def is_live() -> bool:
    """Return whether the output is a terminal that can redraw lines."""
    return console().is_terminal and not console().is_dumb_terminal


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]] = ()) -> Table:
    """Return a Rich table without its empty columns; a column named `#...` is right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(str(cell), lines=True) for cell in row] for row in rows]
    shown = [
        index for index in range(len(columns)) if not cells or any(row[index] for row in cells)
    ]
    made = Table(
        title=title or None,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for index in shown:
        column = columns[index]
        side: Literal["left", "right"] = "right" if column[:1] == "#" else "left"
        made.add_column(column.lstrip("#"), justify=side, overflow="fold")
    for row in cells:
        made.add_row(*(Text(row[index]) for index in shown))
    return made


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]] = (),
    *,
    optional: Sequence[str] = (),
    nothing: str = "",
) -> None:
    """Print a heading and a table; drop optional columns if the table is too wide.

    Args:
        optional: Columns that may be dropped, in this order.
        nothing: Heading if there are no rows.
    """
    from rich.console import Group

    out = console()
    rows = list(rows)
    title = title if rows else nothing or title
    parts = [heading(title)] if title else []
    if rows:
        parts.append(fitted(columns, rows, optional=optional, width=out.width))
    out.print(Group(*parts))


def fitted(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    optional: Sequence[str],
    width: int,
) -> Table:
    """Return a table of at most `width` characters if dropping optional columns suffices."""
    from rich.measure import Measurement

    out = console()
    unlimited = out.options.update(max_width=UNLIMITED_COLUMNS)
    left, names = [list(row) for row in rows], list(columns)
    made = table("", names, left)
    for column in optional:
        if Measurement.get(out, unlimited, made).maximum <= width:
            break
        position = names.index(column)
        del names[position]
        for row in left:
            del row[position]
        made = table("", names, left)
        made.caption, made.caption_justify = "--json shows all columns", "left"
    return made


@contextmanager
def progress_bars(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that draws the bar of a phase: its name, what is done, and the total."""
    if not shown:
        yield lambda phase, done, total: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase)
            bars.update(tasks[phase], completed=done, total=total)

        yield show


@contextmanager
def refreshing(*, as_json: bool = False) -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows successive states: redrawn on a terminal, else appended.

    Args:
        as_json: Whether states are plain data to print as JSON lines.
    """
    if as_json:
        yield print_json_line
    elif not is_live():
        out = console()

        def show(state: object) -> None:
            out.print(state)
            out.file.flush()

        yield show
    else:
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            yield lambda state: live.update(state, refresh=True)


def reader_has_closed() -> bool:
    """Return whether standard output is a pipe that its reader has closed.

    A command that waits for a message would otherwise notice only at its next write.
    """
    try:
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)  # errors are always reported
        return any(event & select.POLLERR for _, event in pipe.poll(0))
    except (OSError, ValueError):  # the stream has no descriptor, as in tests
        return False


def plural(count: int, noun: str) -> str:
    """Return the singular or plural of a noun for a count."""
    return noun if count == 1 else f"{noun}s"


def heading(text: str) -> RenderableType:
    """Return a heading line; unlike a table's title, it is not limited to the table's width."""
    from rich.text import Text

    return Text(printable(text), style="bold")


def notice(text: str) -> None:
    """Print one line to standard error."""
    print(f"duemq: {printable(text)}", file=sys.stderr, flush=True)
