"""The runbook, which lists every condition that stops a migration with its text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from duemq_migration.plans.plan import ObstacleKind

TOP = Path(__file__).resolve().parents[2]
RUNBOOK = (TOP / "docs" / "how-to" / "migrate-runbook.md").read_text()
SOURCES = sorted(
    path
    for folder in ("migration", "timer_store")
    for path in (TOP / folder).rglob("*.py")
    if folder == "migration" or path.name in ("enqueue_service.py", "transfers.py")
)
COPY = TOP / "message_store" / "store_copy.py"  # offline migration into a copy
WORDS_MIN = 3


SEEN = (
    "it was made for store",
    "days old",
    "the clock was set back",
    "no longer exists",
    "does not apply",
    "every level of this plan is migrated already",
    "this broker has no such plan",
    "is not a plan",
    "bytes of timer units, room for",
    "levels and timers do not run now",
    "the store is not writable",
    "both sides differ",
    "timerWheelEnable=false",
    "runs without DueMQ's",
    "become due while it runs",
    "cannot be read",
    "are in commit log files that have expired",
    "have a checksum of their properties, or no single level",
    "are due beyond the roll window",
    "it is rolling back: start a broker, which completes that",
    "is not a store",
    "is not empty",
    "is below the store",
)


def texts(node: ast.AST) -> list[str]:
    """Return the texts in an expression up to its first value."""
    found, inside = [], set()
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            inside |= {id(value) for value in part.values}
            first = part.values[0]
            found += [str(first.value)] if isinstance(first, ast.Constant) else []
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found += [] if id(part) in inside else [part.value]
    return [text for text in found if len(text.split()) >= WORDS_MIN]


def reasons(path: Path) -> list[str]:
    """Return the reasons of blocked steps: texts assigned to `blocked_by`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "blocked_by":
            found += texts(node.value)
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute) and target.attr == "blocked_by":
                found += texts(node.value)
    return found


def messages(path: Path) -> list[str]:
    """Return all texts of a module without their arguments."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            found.append("".join(map(str, parts)))
    return found


MESSAGES = [
    text
    for path in [*SOURCES, COPY, TOP / "delayed_delivery" / "ownership.py"]
    for text in messages(path)
]
ALL = sorted({text for path in SOURCES for text in reasons(path)})


def test_reasons_are_found() -> None:
    assert len(ALL) >= 6
    assert "deliveries of the level are retried" in ALL


@pytest.mark.parametrize("reason", ALL)
def test_each_reason_of_a_blocked_step_has_an_entry(reason: str) -> None:
    words = " ".join(reason.split(":")[0].split()[:6])
    assert words in RUNBOOK


@pytest.mark.parametrize("kind", ObstacleKind)
def test_each_obstacle_has_an_entry(kind: ObstacleKind) -> None:
    assert f"| `{kind.value}` |" in RUNBOOK


@pytest.mark.parametrize("words", SEEN)
def test_each_refusal_has_an_entry_and_is_reported(words: str) -> None:
    assert words in RUNBOOK
    assert any(words in text for text in MESSAGES), f"no module reports {words!r}"
