"""Compilation of the listed kernels in child processes, and loading in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.message_store.kernels.test_cache import make_tree, run

LIST = """\
# a comment
a b  timer_store.kernels.one.twice(int64)
a  timer_store.kernels.one.twice(float64)
b  timer_store.kernels.one.twice({last})
"""
COMPILE = """
from message_store.kernels.compilation import compile_and_load
from timer_store.kernels.one import twice
compile_and_load("a")
print(len(twice.signatures), sum(twice.stats.cache_misses.values()))
"""
KEPT = """
from message_store.kernels.registry import every_kernel
print(*(listed.is_cached for listed in every_kernel()))
"""
REPORTS = """
from message_store.kernels import compilation
from message_store.kernels.registry import every_kernel
compilation.REPORT_S = 1 / 64
seen = []
with compilation.Compilation(every_kernel()) as compiled:
    compiled.wait(lambda *progress: seen.append(progress))
print(seen == sorted(seen), seen[0][0] < 3, *seen[-1])
"""
FAIL = """
from message_store.kernels.compilation import CompilationFailed, compile_all
from message_store.kernels.registry import kernels_of
try:
    compile_all(kernels_of(["b"]))
except CompilationFailed as error:
    print("No module named" in str(error))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small source tree with the real registry and its own list."""
    top = make_tree(tmp_path / "tree")
    (top / "message_store/kernels/signatures.txt").write_text(LIST.format(last="float32"))
    return top


def test_children_compile_a_group_and_the_process_loads_it(tree: Path) -> None:
    assert run(tree, KEPT) == ["False", "False", "False"]
    assert run(tree, COMPILE) == ["2", "0"]
    assert run(tree, KEPT) == ["True", "True", "False"]


@pytest.mark.finding("3U7")
def test_the_progress_is_reported(tree: Path) -> None:
    assert run(tree, REPORTS) == ["True", "True", "3", "3"]


@pytest.mark.extended
def test_a_kernel_that_fails_to_compile_is_reported(tree: Path) -> None:
    (tree / "message_store/kernels/signatures.txt").write_text(LIST.format(last="no.gone[::1]"))
    assert run(tree, FAIL) == ["True"]
