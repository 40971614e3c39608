"""The kernel cache: an entry depends on all sources of its kernel and on nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from message_store import kernels
from message_store.kernels import folders, kernel_sources, module_of, sources_of
from tests.support.extended import extended
from tests.support.forked_programs import NUMBA, run_forked

TOP = folders()["message_store"].parent
SOURCES_MAX = 30
GATHER = TOP / "timer_store" / "kernels" / "gather.py"
REPORT = """
import sys
from message_store.kernels import digest_of, digest_of_all, folders
print(digest_of(folders()["timer_store"] / "kernels/one.py"), digest_of_all())
"""
USE = """
from timer_store.kernels.one import twice
print(twice(21), sum(twice.stats.cache_misses.values()))
"""
CALL = """
from timer_store.kernels.one import twice
from timer_store.kernels.four import four
value = twice(21)
[loaded] = twice.overloads.values()
print(value, loaded.library._shared_module)
print(four(21), sum(twice.stats.cache_misses.values()))
"""
FOUR = """
from message_store.kernels.kernel import kernel
from timer_store.kernels.one import twice


@kernel
def four(number):
    return twice(twice(number))
"""
FAIL = """
from timer_store.kernels.one import twice
for value in ("text", "text", 21):
    try:
        print(twice(value))
    except Exception as error:
        print(type(error).__name__)
print(sum(twice.stats.cache_misses.values()) - 2)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small source tree with the real cache module."""
    return make_tree(tmp_path / "first")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the digests of an unchanged tree; they do not depend on its path."""
    return run(make_tree(tmp_path_factory.mktemp("unchanged")), REPORT)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache that a process has just filled."""
    home = tmp_path_factory.mktemp("filled")
    assert run(make_tree(home / "tree"), USE, home / "cache") == ["42", "1"]
    return home / "cache"


@pytest.fixture
def cache(tmp_path: Path, filled: Path) -> Path:
    """Return a copy of the filled cache."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def make_tree(top: Path) -> Path:
    files = {
        "timer_store/__init__.py": "",
        "timer_store/kernels/__init__.py": "",
        "timer_store/layout.py": "FACTOR = 2\n",
        "timer_store/kernels/other.py": "X = 1\n",
        "timer_store/kernels/one.py": (
            "from message_store.kernels.kernel import kernel\n"
            "from timer_store import (\n    layout,\n)\n\n"
            "FACTOR = layout.FACTOR\n\n\n@kernel\ndef twice(number):\n    return number * FACTOR\n"
        ),
        "message_store/__init__.py": "",
    }
    for name in (
        "__init__.py",
        "kernel.py",
        "registry.py",
        "compilation.py",
        "type_names.py",
        "signatures.txt",
    ):
        path = f"message_store/kernels/{name}"
        files[path] = (TOP / path).read_text()
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def environment_of(top: Path, cache: Path | None) -> dict[str, str]:
    named = {"DUEMQ_KERNEL_CACHE": str(cache or top / "cache")}
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | named


def run(top: Path, program: str, cache: Path | None = None) -> list[str]:
    environment = environment_of(top, cache)
    done = run_forked(NUMBA, program, environment=environment, folder=top)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def run_apart(top: Path, program: str, cache: Path) -> list[str]:
    """Run a program in a process of its own, so that several run at a time."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=top,
        env=environment_of(top, cache),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_kernel_depends_on_few_files() -> None:
    """Else it is compiled again after changes that do not concern it."""
    counts = {module_of(path): len(sources_of(path)) for path in kernel_sources()}
    assert {name: count for name, count in counts.items() if count > SOURCES_MAX} == {}


def test_the_sources_of_a_kernel_are_its_imports() -> None:
    names = {module_of(path) for path in sources_of(GATHER)}
    assert {
        "timer_store.layout",
        "message_store.layout",
        "message_store.queues.topic_table",
    } <= names
    assert {"message_store.kernels.bytes", "timer_store.kernels.enqueue"} <= names
    assert "timer_store.dequeue.deliverer" not in names
    assert not [path for path in kernel_sources() if "cli" in path.parts]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("changed", "one", "all_"),
    [
        ("timer_store/layout.py", True, True),
        ("timer_store/kernels/one.py", True, True),
        ("timer_store/kernels/other.py", False, True),
        ("timer_store/__init__.py", True, True),  # executed by the import
        ("message_store/kernels/signatures.txt", False, True),
        ("message_store/README.py", False, False),
    ],
)
def test_a_change_invalidates_dependent_kernels(
    tree: Path, unchanged: list[str], changed: str, one: bool, all_: bool
) -> None:
    with (tree / changed).open("a") as file:
        file.write("# changed\n")
    after = run(tree, REPORT)
    assert (unchanged[0] != after[0], unchanged[1] != after[1]) == (one, all_)


def test_a_changed_constant_is_compiled_in_and_copies_share_code(
    tree: Path, cache: Path, tmp_path: Path
) -> None:
    assert run(make_tree(tmp_path / "second"), USE, cache) == ["42", "0"]
    (tree / "timer_store/layout.py").write_text("FACTOR = 3\n")
    assert run(tree, USE, cache) == ["63", "1"]
    assert run(tmp_path / "second", USE, cache) == ["42", "0"]


@pytest.mark.extended
def test_concurrent_processes_compile_a_kernel_once(tree: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: run_apart(tree, USE, tmp_path / "cache"), range(4)))
    assert sorted(found) == [["42", "0"], ["42", "0"], ["42", "0"], ["42", "1"]]


def test_the_bitcode_of_a_loaded_kernel_is_parsed_when_a_caller_is_compiled(
    tree: Path, cache: Path
) -> None:
    (tree / "timer_store/kernels/four.py").write_text(FOUR)
    assert run(tree, CALL, cache) == ["42", "None", "84", "0"]


def test_a_cache_is_located_when_its_kernel_is_called(tree: Path, tmp_path: Path) -> None:
    run(tree, "import timer_store.kernels.one", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.extended
def test_a_kernel_that_failed_to_compile_can_be_called_again(tree: Path, tmp_path: Path) -> None:
    assert run(tree, FAIL, tmp_path / "cache") == ["TypingError", "TypingError", "42", "1"]


def test_an_unwritable_cache_is_not_used(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run(tree, USE, tmp_path / "file" / "cache")[0] == "42"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".nbi", lambda data: b""),
        (".nbc", lambda data: data[: len(data) // 2]),
        extended(".nbi", lambda data: data[: len(data) // 2]),
        extended(".nbc", lambda data: b""),
    ],
)
def test_a_damaged_cache_entry_is_compiled_again(
    tree: Path, cache: Path, suffix: str, damage: Callable[..., Any]
) -> None:
    [entry] = cache.rglob(f"*{suffix}")
    entry.write_bytes(damage(entry.read_bytes()))
    assert run(tree, USE, cache) == ["42", "1"]
    assert run(tree, USE, cache) == ["42", "0"]


def test_the_cache_of_this_process_is_at_its_documented_path() -> None:
    code = __import__("message_store.kernels.crc", fromlist=["crc"])
    compiled = next(v for v in vars(code).values() if hasattr(v, "py_func"))
    assert Path(compiled._cache.cache_path).parent == kernels.cache_directory()
