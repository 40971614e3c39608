"""Names, words and structures that must not return; each budget may only shrink."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.test_house_rules import TOP, name_of, product_files, tree_of
from tests.test_import_arrows import ARROWS

BANNED_FILES = {
    "odd",
    "beside",
    "desk",
    "lean",
    "sides",
    "scribe",
    "handing",
    "told",
    "books",
    "born",
}
"""File names that are adjectives, images or synonyms of glossary terms (style, Language)."""
WORDS = {
    "wish": 0, "told": 2, "anew": 0, "beside": 0, "scribe": 0, "desk": 0, "rehearse": 0,
    "odd": 0, "giveback": 6, "handing": 0, "intake": 0, "trip": 0, "books": 0,
    "nobody": 0, "somebody": 0, "everybody": 0, "whoever": 0, "wherever": 0, "whom": 0, "tell": 0,
    "moment": 0, "standing": 0, "life": 0, "fold": 6, "said": 0, "handover": 7, "waiting": 21,
    "hurt": 0, "hung": 0, "beheaded": 0, "victim": 0, "friend": 0, "world": 0, "lot": 0,
}  # fmt: skip
"""Banned words and how often the product's Python files may still have them.

`giveback` and `handover` are names of record types on the disk, `told` a folder of a watch, `fold`
an argument of libraries and a term of CRCs; `waiting` is a name in the interface of plugins, and
what a coroutine or a lock does.
"""
ANY_MAX = 138
CYCLES_MAX = 0
KERNEL_ARGUMENTS_MAX = 8
WIDE_KERNELS_MAX = 0
FILES_OF_A_FOLDER_MAX = 26
PRIVATES_IN_TESTS_MAX = 25
PUBLIC_UNDERSCORES = {"_asdict", "_exit", "_fields", "_make", "_replace"}  # of named tuples, os


def test_files_are_named_after_concepts() -> None:
    assert [name_of(path) for path in product_files() if path.stem in BANNED_FILES] == []


@pytest.mark.parametrize("word", WORDS)
def test_banned_words(word: str) -> None:
    pattern = re.compile(rf"\b{word}(s|es|ed|d)?\b", re.I)
    found = Counter({name_of(p): len(pattern.findall(p.read_text())) for p in product_files()})
    assert found.total() <= WORDS[word], [name for name, count in found.items() if count]


def test_any_is_rare() -> None:
    """`Any` in annotations; kernels are compiled, and their arguments have NumPy's types."""
    found = Counter[str]()
    for path in product_files():
        if "kernels" not in name_of(path):
            nodes = ast.walk(tree_of(path))
            found[name_of(path)] = sum(isinstance(n, ast.Name) and n.id == "Any" for n in nodes)
    assert found.total() <= ANY_MAX, found.most_common(5)


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, those under TYPE_CHECKING included."""
    modules = {
        name_of(path)[:-3].replace("/", ".").removesuffix(".__init__") for path in product_files()
    }
    found: dict[str, set[str]] = {}
    for path in product_files():
        module = name_of(path)[:-3].replace("/", ".").removesuffix(".__init__")
        named = found.setdefault(module, set())
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & modules
                named |= inside or ({node.module} & modules)
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names} & modules
        named.discard(module)
    return found


def cycles() -> list[list[str]]:
    """Return the groups of modules that import each other: strongly connected components."""
    graph, index, low = imports(), dict[str, int](), dict[str, int]()
    stack, found = list[str](), list[list[str]]()

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def test_tests_use_few_private_names() -> None:
    """A test that uses only public names allows changes of the implementation."""
    found = Counter[str]()
    for path in sorted((TOP / "tests").rglob("*.py")):
        found[name_of(path)] = sum(map(is_private_of_another, ast.walk(tree_of(path))))
    assert found.total() <= PRIVATES_IN_TESTS_MAX, found.most_common(5)


def is_private_of_another(node: ast.AST) -> bool:
    """Return whether a node reads or sets `thing._name` of something else than self."""
    if not isinstance(node, ast.Attribute) or node.attr in PUBLIC_UNDERSCORES:
        return False
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return node.attr.startswith("_") and not node.attr.startswith("__") and not own


def test_import_cycles() -> None:
    assert len(cycles()) <= CYCLES_MAX, cycles()


def test_kernels_have_few_arguments() -> None:
    wide = [
        f"{name_of(path)}:{node.lineno} {node.name}: {len(node.args.args)}"
        for path in product_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "kernel" for mark in node.decorator_list)
        and len(node.args.args) > KERNEL_ARGUMENTS_MAX
    ]
    assert len(wide) <= WIDE_KERNELS_MAX, wide


def test_folders_stay_small() -> None:
    folders = Counter(path.parent for path in product_files() if path.name != "__init__.py")
    large = {
        str(folder.relative_to(TOP)): n
        for folder, n in folders.items()
        if n > FILES_OF_A_FOLDER_MAX
    }
    assert set(large) <= {"duemq/cli"}, large


def test_unit_tests_mirror_the_packages() -> None:
    """A test named after a module of the product is in the folder that mirrors the module's."""
    modules: dict[str, set[Path]] = {}
    for path in product_files():
        modules.setdefault(path.stem, set()).add(path.parent.relative_to(TOP))
    wrong = []
    for package in ARROWS:
        for path in (TOP / "tests" / package).rglob("test_*.py"):
            homes = {
                home
                for home in modules.get(path.stem.removeprefix("test_"), ())
                if home.parts[0] == package
            }
            if homes and path.parent.relative_to(TOP / "tests") not in homes:
                wrong.append(name_of(path))
    assert wrong == []
