"""Names, words and structures that must not return; each budget may only shrink."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.support.packages import folder_of, module_of, unit_tests_of
from tests.test_house_rules import (
    TOP,
    all_files,
    facts,
    name_of,
    of_product,
    product_files,
    product_names,
)
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
    "asked": 2,
    "wish": 0,
    "told": 2,
    "anew": 0,
    "beside": 0,
    "scribe": 0,
    "desk": 0,
    "rehearse": 0,
    "odd": 0,
    "giveback": 6,
    "handing": 0,
    "intake": 0,
    "trip": 0,
    "books": 0,
    "nobody": 0,
    "somebody": 0,
    "everybody": 0,
    "whoever": 0,
    "wherever": 0,
    "whom": 0,
    "tell": 0,
    "moment": 0,
    "standing": 0,
    "life": 0,
    "fold": 6,
    "said": 0,
    "handover": 7,
    "waiting": 21,
    "hurt": 0,
    "hung": 0,
    "beheaded": 0,
    "victim": 0,
    "friend": 0,
    "world": 0,
    "lot": 0,
}
"""Banned words and how often the product's Python files may still have them.

`giveback` and `handover` are names of record types on the disk, `told` a folder of a watch, `fold`
an argument of libraries and a term of CRCs; `waiting` is a name in the interface of plugins, and
what a coroutine or a lock does.
"""
WORDS_OF_TESTS = {
    "waiting": 209,
    "handover": 28,
    "giveback": 14,
    "fold": 4,
    "moment": 2,
    "odd": 4,
    "trip": 3,
    "books": 1,
    "nobody": 1,
    "tell": 1,
}
"""Budgets of tests and benchmarks, 0 for other words.

`moments` is a key in the results of the load generator, `odd` a property of numbers, `trip` that of
a round trip; `books` is a database, `nobody` an account of the operating system, `tell` a method of
files.
"""
VARIABLES = {
    "found",
    "wanted",
    "mine",
    "known",
    "at",
    "place",
    "piece",
    "why",
    "of",
    "what",
    "this",
    "it",
}
"""Names without a subject, for which a variable, a parameter or an attribute has a noun."""
VARIABLES_MAX = {"delayed_delivery": 2, "spark_reconciliation": 2, "benchmarks": 2}
VARIABLES_MAX |= {"tests/support": 2}
"""How often packages may still have them, 0 for the others.

`why` is a column of the ledger, a key of the response of an audit, and a key of ownership records;
`what` an argument of `until` and of loads of benchmarks.
"""
ANY_MAX = 138
CYCLES_MAX = 0
KERNEL_ARGUMENTS_MAX = 8
WIDE_KERNELS_MAX = 0
FILES_OF_A_FOLDER_MAX = 26
CLASSES_OF_KERNELS = {"Context", "Output", "Source"}
"""Class names that several files of kernels have."""
PRIVATES_IN_TESTS_MAX = 25


def test_files_are_named_after_concepts() -> None:
    assert [name_of(path) for path in product_files() if path.stem in BANNED_FILES] == []


@cache
def banned_words() -> dict[str, Counter[str]]:
    """Return how often each file has each word."""
    pattern = re.compile(rf"\b({'|'.join(WORDS)})(?:s|es|ed|d)?\b", re.I)
    counts: dict[str, Counter[str]] = {word: Counter() for word in WORDS}
    for path in all_files():
        for word in pattern.findall(path.read_text()):
            counts[word.lower()][name_of(path)] += 1
    return counts


@pytest.mark.parametrize("word", WORDS)
def test_banned_words(word: str) -> None:
    product, counts = product_names(), banned_words()[word]
    in_product = {name: count for name, count in counts.items() if name in product}
    others = {
        name: count
        for name, count in counts.items()
        if name not in product and name != "tests/test_tidy.py"
    }
    assert sum(in_product.values()) <= WORDS[word], in_product
    assert sum(others.values()) <= WORDS_OF_TESTS.get(word, 0), others


def test_variables_are_nouns() -> None:
    """Single tests may have them; their support may not."""
    counts: dict[str, Counter[str]] = {}
    for name, variables in facts()["variables"].items():
        package = "tests/support" if name.startswith("tests/support/") else name.partition("/")[0]
        vague = Counter(variable for variable in variables if variable in VARIABLES)
        if package != "tests":
            counts.setdefault(package, Counter()).update(vague)
    over = {
        package: count
        for package, count in counts.items()
        if count.total() > VARIABLES_MAX.get(package, 0)
    }
    assert over == {}


def test_any_is_rare() -> None:
    """`Any` in annotations; kernels are compiled, and their arguments have NumPy's types."""
    names = of_product("any").items()
    found = Counter({name: len(lines) for name, lines in names if "kernels" not in name})
    assert found.total() <= ANY_MAX, found.most_common(5)


def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, those under TYPE_CHECKING included.

    `from package import module` imports the module; `from module import name` imports `module`.
    """
    found: dict[str, set[str]] = {module_of(name_of(path)): set() for path in product_files()}
    for name, imported in of_product("imports").items():
        named = found[module_of(name)]
        for names in imported:
            inside = {each for each in names if each.count(".") == max(n.count(".") for n in names)}
            named |= (inside & found.keys()) or (names & found.keys())
        named.discard(module_of(name))
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
    names = facts()["private names"].items()
    found = Counter({name: len(lines) for name, lines in names if name.startswith("tests/")})
    assert found.total() <= PRIVATES_IN_TESTS_MAX, found.most_common(5)


def test_import_cycles() -> None:
    assert len(cycles()) <= CYCLES_MAX, cycles()


def test_kernels_have_few_arguments() -> None:
    wide = [
        f"{name}:{line} {kernel}: {count}"
        for name, kernels in of_product("kernels").items()
        for kernel, line, count in kernels
        if count > KERNEL_ARGUMENTS_MAX
    ]
    assert len(wide) <= WIDE_KERNELS_MAX, wide


def test_class_names_are_distinct() -> None:
    names = Counter(name for classes in of_product("classes").values() for name in classes)
    assert {name for name, count in names.items() if count > 1} <= CLASSES_OF_KERNELS


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
    wrong = []
    for package in ARROWS:
        homes: dict[str, set[Path]] = {}
        for path in folder_of(package).rglob("*.py"):
            home = unit_tests_of(package) / path.parent.relative_to(folder_of(package))
            homes.setdefault(f"test_{path.name}", set()).add(home)
        for path in unit_tests_of(package).rglob("test_*.py"):
            if path.parent not in homes.get(path.name, {path.parent}):
                wrong.append(name_of(path))
    assert wrong == []


def test_the_formatter_has_the_last_word() -> None:
    """No layout against the formatter, and no starred tuple of several items on one line."""
    starred = [
        f"{name}:{line}" for name, lines in facts()["starred tuples"].items() for line in lines
    ]
    pragma = re.compile(r"# fmt: ?(?:skip|off)")
    skipped = [name_of(path) for path in all_files() if pragma.search(path.read_text())]
    assert (starred, skipped) == ([], [])
