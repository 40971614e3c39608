"""Commands that pages and messages name exist, with their options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from duemq.cli.app import app
from duemq.cli.groups import LazyGroup
from tests.support.packages import TOP

ENDS_OF_A_COMMAND = re.compile(r"\s(?:\||&&|;|>|<|#)(?:\s|$)|\s{3,}|\)(?:\s|$)")
OF_EVERY_COMMAND = {"--help", "-h", "--install-completion", "--show-completion"}
PAGES = sorted(
    page
    for page in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md"), *(TOP / "deploy").rglob("*")]
    if page.suffix in {".md", ".yml", ".service", ""}
    and page.is_file()
    and page.name not in {"cli.md", "findings.md"}
    and "decisions" not in page.parts
)
SOURCES = sorted(
    source
    for top in (
        "duemq",
        "duemq_common",
        "message_store",
        "delayed_delivery",
        "schedule_service",
        "timer_store",
        "recurring_schedules",
        "migration",
        "spark_reconciliation",
        "config",
    )
    for source in (TOP / top).rglob("*")
    if source.suffix in {".py", ".toml", ".html", ".conf", ".ini"}
)


def named_commands(text: str) -> Iterator[str]:
    """Yield command lines without `duemq`: in backticks, and lines of code blocks."""
    text = text.replace("\\\n", " ")
    yield from re.findall(r"`duemq ([^`]+)`", re.sub(r"\"\n\s*f?\"|\n\s*", " ", text))
    for line in text.splitlines():
        code = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line.strip())
        if match := re.match(r"(?:sudo |\S+/bin/|\S+ \S+ \* \* \*\s+)?duemq (.+)", code):
            yield match[1]


@cache
def commands() -> Any:
    """Return the command line application."""
    return typer.main.get_command(app)


@cache
def loaded(command: Any) -> Any:
    """Return a command, or a group with its commands."""
    return command.loaded if isinstance(command, LazyGroup) else command


def fault(line: str) -> str:
    """Return what does not exist in a command line; empty: everything does."""
    command = commands()
    words = shlex.split(ENDS_OF_A_COMMAND.split(line)[0].replace("'", " ").replace("...", " "))
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in OF_EVERY_COMMAND:
            return ""
        elif word.startswith("-") and len(word) > 1:
            name = word.partition("=")[0]
            option = {opt: item for item in command.params for opt in item.opts}.get(name)
            if option is None:
                return f"no {name} in: duemq {line}"
            skip = not option.is_flag and "=" not in word
        elif hasattr(command, "commands"):
            if word.isupper() or not word.isascii():
                return ""  # a placeholder
            if word not in command.commands:
                return f"no {word} in: duemq {line}"
            command = loaded(command.commands[word])
    return ""


def name_of(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_exist(page: Path) -> None:
    assert not [text for line in named_commands(page.read_text()) if (text := fault(line))]


def test_commands_of_messages_exist() -> None:
    lines = {line for source in SOURCES for line in named_commands(source.read_text())}
    assert len(lines) > 50
    assert not [text for line in sorted(lines) if (text := fault(line))]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("timers cancel --id 1", ""),
        ("timers cancel --id 1 | head -1", ""),
        ("levels      # a comment", ""),
        ("timers erase --id 1", "erase"),
        ("timers cancel --number 1", "--number"),
        ("quarantine send --offset N", "send"),
    ],
)
def test_what_is_missing_is_named(line: str, missing: str) -> None:
    assert fault(line).partition(" in:")[0] == (f"no {missing}" if missing else "")
