"""Python blocks of pages: what they import exists, and every name is defined."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.packages import TOP

HOW_TO = TOP / "docs" / "how-to"
PAGES = sorted(page for page in HOW_TO.glob("*.md") if "```python" in page.read_text())
OUR_PACKAGES = {
    "duemq",
    "duemq_common",
    "delayed_delivery",
    "message_store",
    "spark_reconciliation",
    "timer_store",
}
OF_THE_READER = {"spark", "producer", "deltalake", "Message"}
"""Names that a page introduces in its text."""


def trees(page: Path) -> list[ast.Module]:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    return [
        compile(block, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for block in blocks
    ]


def defined_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_of_a_block_is_defined(page: Path) -> None:
    for tree in trees(page):
        known = {*defined_names(tree), *dir(builtins), *OF_THE_READER}
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert used <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_block_imports_exists(page: Path) -> None:
    imports = [
        node for tree in trees(page) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    ]
    for node in imports:
        if (node.module or "").partition(".")[0] in OUR_PACKAGES:
            module = import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
