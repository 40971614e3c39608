"""Call sites of the product that reach a disk, found in its source and at run time."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

TOP = Path(__file__).resolve().parents[2]
OTHER_DISK = ("message_store/kernels/", "duemq/configuration/", "duemq/net/")
"""Files outside the store: kernel cache, configuration, certificates."""
PACKAGES = (
    "delayed_delivery",
    "duemq",
    "duemq_common",
    "message_store",
    "migration",
    "schedule_service",
    "timer_store",
)
OS_CALLS = frozenset(
    {
        "open",
        "pread",
        "preadv",
        "pwrite",
        "pwritev",
        "read",
        "write",
        "fsync",
        "fdatasync",
        "ftruncate",
        "truncate",
        "posix_fallocate",
        "rename",
        "replace",
        "unlink",
        "link",
        "mkdir",
        "makedirs",
    }
)
PATH_CALLS = frozenset(
    {
        "open",
        "read_bytes",
        "read_text",
        "write_bytes",
        "write_text",
        "rename",
        "unlink",
        "mkdir",
        "touch",
    }
)
FILE_CALLS = frozenset({"write", "flush", "read"})


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """Call site in the source.

    Attributes:
        file: Path relative to the project.
        line: First line of the call.
        end_line: Last line of the call.
        call: Name of the called function, such as `pwritev`.
    """

    file: str
    line: int
    end_line: int
    call: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.call}"


@cache
def static_sites() -> list[Site]:
    """Return the sorted call sites of the product that reach a disk."""
    found = set[Site]()
    for package in PACKAGES:
        for path in sorted((TOP / package).rglob("*.py")):
            name = str(path.relative_to(TOP))
            if "/cli/" not in name and not name.startswith(OTHER_DISK):
                found.update(_sites_of(name, ast.parse(path.read_text())))
    return sorted(found)


def _sites_of(name: str, tree: ast.AST) -> Iterator[Site]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        call = _call_of(node)
        if call:
            yield Site(name, node.lineno, node.end_lineno or node.lineno, call)


def _call_of(node: ast.Call) -> str:
    """Return the name of the called function if it reaches a disk; else an empty text."""
    if isinstance(node.func, ast.Name):
        return "open" if node.func.id == "open" else ""
    if not isinstance(node.func, ast.Attribute):
        return ""
    owner, name = ast.unparse(node.func.value), node.func.attr
    if owner == "os":
        return name if name in OS_CALLS else ""
    if owner == "mmap":
        return "mmap" if name == "mmap" else ""
    if name == "open" and owner.split(".")[-1] not in {"path", "_path", "temporary", "candidate"}:
        return ""  # a context manager of the product
    return name if name in PATH_CALLS and owner[:1].islower() else ""


def running_site(call: str) -> Site | None:
    """Return the call site in the product of a running `call`; None: called from other code."""
    frame: FrameType | None = inspect.currentframe()
    frame = frame and frame.f_back
    prefix = str(TOP) + "/"
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(prefix):
            name = file[len(prefix) :]
            if name.startswith(OTHER_DISK):
                return None
            if name.split("/", 1)[0] in PACKAGES:
                return Site(name, frame.f_lineno, frame.f_lineno, call)
            if not name.startswith("tests/storage_faults/injector"):
                return None
        elif "importlib" in file:
            return None  # a module import
        frame = frame.f_back
    return None
