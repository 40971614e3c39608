"""Texts of logs and errors that how-to pages quote are texts of the product."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_commands import SOURCES
from tests.support.packages import TOP

TITLES = {"notice", "error", "message", "observation", "reason", "refusal", "log line or error"}
OF_OTHERS = (  # Linux, SQLite, OpenSSL
    "No space left on device",
    "Input/output error",
    "disk I/O error",
    "database is locked",
    "database or disk is full",
    "file is not a database",
    "certificate verify failed",
    "alert certificate expired",
    "alert unknown ca",
)
# Some of their words are formatted values.
COMPOSED = ("handshake failed", "s ahead of this broker's")
PLACEHOLDER = re.compile(
    r"\.\.\.|[:;]|\.bak|\b(?:[A-Z]+(?:_[A-Z]+)*|[a-z]+(?:[A-Z]\w*)+)\b(?!')|[/\d.\-()]*\d"
)
PAGES = sorted((TOP / "docs" / "how-to").glob("*.md"))


def literal(node: ast.AST) -> str:
    """Return the text of a literal, with a zero byte for each value that it formats."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "\0" for part in node.values)
    return ""


@cache
def product_texts() -> str:
    """Return all literals of the product's packages."""
    modules = (ast.parse(path.read_text()) for path in SOURCES if path.suffix == ".py")
    return "\n".join(
        text for module in modules for node in ast.walk(module) if (text := literal(node))
    )


def quotations(page: Path) -> Iterator[str]:
    """Yield the texts in backticks of the first column of tables about notices and errors."""
    title = ""
    for line in page.read_text().splitlines():
        cell = re.split(r"(?<!\\)\|", line)[1].strip() if line.startswith("|") else ""
        title = "" if not cell else title or cell
        if title in TITLES:
            yield from (text for text in re.findall(r"`([^`]+)`", cell) if " " in text)


def fragments(text: str) -> list[str]:
    """Return the parts of a quotation between its placeholders."""
    return [part for each in PLACEHOLDER.split(text) if len(part := each.strip(" ,;:.'")) > 3]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_texts_exist(page: Path) -> None:
    absent = [
        (text, part)
        for text in quotations(page)
        for part in fragments(text)
        if part not in product_texts() and part not in (*OF_OTHERS, *COMPOSED)
    ]
    assert absent == []
