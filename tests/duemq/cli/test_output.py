"""What is printed: escapes, tables that fit, JSON, states one after another."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from duemq.cli import output
from duemq.cli.output import (
    fitted,
    plural,
    print_json,
    print_json_line,
    print_table,
    printable,
    table,
)

ROWS = [("a" * 30, 1, "", "x" * 30), ("b", 2, "", "y" * 30)]
COLUMNS = ("name", "#count", "empty", "more")


@pytest.mark.finding("B16")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egpj.exe\u2066", "\\u202egpj.exe\\u2066"),
    ],
)
def test_control_characters_become_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.finding("B16")
def test_lines_may_stay_lines() -> None:
    assert printable("a\nb\t\x1b", lines=True) == "a\nb\t\\x1b"


@pytest.mark.finding("B16")
@pytest.mark.finding("3S8")
@pytest.mark.parametrize("print_one", [print_json, print_json_line])
def test_json_has_no_control_character_and_the_same_text(
    capsys: pytest.CaptureFixture[str], print_one: Callable[[object], None]
) -> None:
    value = {"body": "\x1b\x07\x9b31m\x7fü", "\u202egpj.exe\u2066": ["\u2028\u200f\u061c"]}
    print_one(value)
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value


def drawn(made: object, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(made)
    return out.getvalue().splitlines()


@pytest.mark.finding("B14")
def test_an_empty_column_is_omitted() -> None:
    assert "empty" not in drawn(table("", COLUMNS, ROWS), 80)[0]


@pytest.mark.finding("B14")
@pytest.mark.parametrize(("width", "left"), [(80, "more"), (60, "count"), (34, "name")])
def test_optional_columns_go_when_it_is_narrow(
    monkeypatch: pytest.MonkeyPatch, width: int, left: str
) -> None:
    monkeypatch.setattr(output, "PLAIN_COLUMNS", width)  # as a terminal of that width
    made = fitted(COLUMNS, ROWS, optional=("more", "#count"), width=width)
    lines = drawn(made, width)
    assert lines[0].split()[-1] == left
    assert max(map(len, lines)) <= width
    assert len(lines) == 4 + (left != "more")  # a row is a line; below it: what is left out


@pytest.mark.finding("B16")
def test_cells_of_a_table_are_escaped() -> None:
    assert "\\x1b" in drawn(table("", ("a",), [("\x1b[2J",)]), 80)[2]


@pytest.mark.finding("B15")
def test_states_stand_below_each_other_where_lines_cannot_be_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with output.refreshing() as show:
        show("one")
        assert capsys.readouterr().out == "one\n"
        show("two")
    assert capsys.readouterr().out == "two\n"


def test_a_noun_after_a_number() -> None:
    assert (plural(1, "message"), plural(0, "message")) == ("message", "messages")


@pytest.mark.parametrize(("rows", "text"), [([], "no audits yet\n"), ([("1",)], "audits\n")])
def test_the_heading_of_a_table_without_rows(
    rows: list[tuple[str]], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table("audits", ("number",), rows, nothing="no audits yet")
    lines = capsys.readouterr().out.splitlines(keepends=True)
    assert lines[0] == text
    assert len(lines) == 1 or rows
