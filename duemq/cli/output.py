"""Tables and lines for people, JSON for programs.

Text that came from elsewhere (bodies, keys, topics, remarks of a broker) is escaped before it
reaches a terminal: a control character in a body must not move the cursor, set the title of a
window or answer for the user.
"""

from __future__ import annotations

import json
import re
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_COLUMNS = 160
UNLIMITED_COLUMNS = 10_000
# C0 and C1 control characters, DEL, line and paragraph separators, marks that reorder text
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text whose control characters are written as escapes.

    Args:
        lines: line ends and tabs stay as they are.
    """

    def escape(found: re.Match[str]) -> str:
        character = found[0]
        if lines and character in "\n\t":
            return character
        number = ord(character)
        return _SHORT.get(character) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")

    return _UNSAFE.sub(escape, text)


def print_json(value: Any) -> None:
    """Print one JSON document; non-ASCII text as it is."""
    _print_json(value, indent=2)


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, at once."""
    _print_json(value, indent=None)


def _print_json(value: Any, *, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    # JSON leaves DEL and C1 characters as they are; inside strings an escape means the same
    text = re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def console(*, stderr: bool = False) -> Console:
    """Return a Rich console; output that is not a terminal gets wide lines."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to `errors_become_exits`, which has an exit code for it."""
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    return Piped(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_COLUMNS)


def is_live(*, stderr: bool = False) -> bool:
    """Return whether the output is a terminal on which lines can be replaced."""
    return console(stderr=stderr).is_terminal and not console(stderr=stderr).is_dumb_terminal


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]] = ()) -> Table:
    """Return a Rich table; a column whose name starts with `#` is right-aligned.

    A column without any cell is left out.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(str(cell), lines=True) for cell in row] for row in rows]
    shown = [at for at in range(len(columns)) if not cells or any(row[at] for row in cells)]
    made = Table(
        title=title or None, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    for at in shown:
        column = columns[at]
        side: Literal["left", "right"] = "right" if column[:1] == "#" else "left"
        made.add_column(column.lstrip("#"), justify=side, overflow="fold")
    for row in cells:
        made.add_row(*(Text(row[at]) for at in shown))
    return made


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]] = (),
    *,
    optional: Sequence[str] = (),
) -> None:
    """Print a heading and a table; drop optional columns if it is too wide for the terminal.

    Args:
        optional: names of columns that may be dropped, in this order.
    """
    from rich.console import Group

    out = console()
    rows = list(rows)
    parts = [heading(title)] if title else []
    if rows:
        parts.append(fitted(columns, rows, optional=optional, width=out.width))
    out.print(Group(*parts))


def fitted(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    optional: Sequence[str],
    width: int,
) -> Table:
    """Return a table that needs no more than `width` columns of text, if that is possible."""
    from rich.measure import Measurement

    out = console()
    unlimited = out.options.update(max_width=UNLIMITED_COLUMNS)
    left, names = [list(row) for row in rows], list(columns)
    made = table("", names, left)
    for column in optional:
        if Measurement.get(out, unlimited, made).maximum <= width:
            break
        at = names.index(column)
        del names[at]
        for row in left:
            del row[at]
        made = table("", names, left)
        made.caption, made.caption_justify = "--json shows all columns", "left"
    return made


@contextmanager
def refreshing(*, as_json: bool = False) -> Iterator[Callable[[Any], None]]:
    """Yield what shows one state after another: in place on a terminal, else one below the other.

    Args:
        as_json: each is plain data, printed as one line.
    """
    if as_json:
        yield print_json_line
    elif not is_live():
        out = console()

        def show(state: Any) -> None:
            out.print(state)
            out.file.flush()

        yield show
    else:
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            yield lambda state: live.update(state, refresh=True)


def reader_is_gone() -> bool:
    """Return whether standard output is a pipe whose reader has ended, before anything is written.

    Without it a command that waits for its next message would not notice before that arrives.
    """
    try:
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)  # errors are always reported
        return any(event & select.POLLERR for _, event in pipe.poll(0))
    except (OSError, ValueError):  # a test's own stream has no descriptor
        return False


def plural(count: int, noun: str) -> str:
    """Return a noun as it follows a number."""
    return noun if count == 1 else f"{noun}s"


def heading(text: str) -> Any:
    """Return a line above a table; a table's own title is as narrow as the table."""
    from rich.text import Text

    return Text(printable(text), style="bold")


def notice(text: str) -> None:
    """Print one line to standard error, for people, apart from the output for programs."""
    print(f"duemq: {printable(text)}", file=sys.stderr, flush=True)
