"""Compiled loops, and the cache of their machine code.

The machine code of a kernel depends on its module and on all modules that this module imports:
helpers are inlined, layouts and constants are compiled in. Numba detects only a change of the
kernel's own file. Therefore code is stored under a digest of all these files: after a change,
exactly the kernels that depend on it are compiled again. The digest contains names of modules
instead of paths, so copies of one version share the code. Numba stores the code of each processor
apart; a directory that is complete for this processor may be read-only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numba

from duemq_common.existence import is_file

CACHE_VARIABLE = "DUEMQ_KERNEL_CACHE"
PACKAGES = (
    "duemq_common",
    "message_store",
    "delayed_delivery",
    "schedule_service",
    "timer_store",
    "duemq_migration",
    "duemq",
)
SIGNATURES = Path(__file__).with_name("signatures.txt")  # see registry.py
IMPORT = re.compile(r"^\s*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([\w.]+))", re.M)
MACHINE = f"{numba.__version__} {platform.python_version()}"


def cache_directory() -> Path:
    """Return the directory of the machine code, also of embedded brokers and Spark's workers."""
    if directory := os.environ.get(CACHE_VARIABLE):
        return Path(os.path.expanduser(directory))  # systemd and containers leave `~` as it is
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duemq" / "kernels"


@cache
def folders() -> dict[str, Path]:
    """Return the folders of the packages by their names; they may be in different directories."""
    specs = {name: find_spec(name) for name in PACKAGES}
    return {
        name: Path(spec.origin).resolve().parent
        for name, spec in specs.items()
        if spec is not None and spec.origin is not None
    }


@cache
def module_of(path: Path) -> str | None:
    """Return the dotted name of the module in a file, None outside the packages."""
    for name, folder in folders().items():
        if path.is_relative_to(folder):
            inside = path.relative_to(folder).with_suffix("")
            return ".".join([name, *inside.parts]).removesuffix(".__init__")
    return None


def kernel_sources() -> list[Path]:
    """Return the files that contain kernels, in a fixed order."""
    paths = [path for folder in folders().values() for path in folder.rglob("kernels*")]
    files = [path for path in paths if path.suffix == ".py" and path.parent.name != "cli"]
    inside = [path for folder in paths if not folder.suffix for path in folder.rglob("*.py")]
    return sorted({*files, *inside})


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """Return the files of this distribution that a module imports directly."""
    files = []
    for source, names, plain in IMPORT.findall(path.read_text()):
        module = source or plain
        if module.partition(".")[0] in PACKAGES:
            file = _file_of(module)
            files.append(file)
            if file is not None and file.name == "__init__.py":  # a name may be a module
                files += [_file_of(f"{module}.{name}") for name in re.findall(r"\w+", names)]
    return tuple(file for file in files if file is not None)


@cache
def _file_of(module: str) -> Path | None:
    package, *inside = module.split(".")
    if package not in folders():
        return None
    base = folders()[package].joinpath(*inside)
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if is_file(p)), None)


def sources_of(path: Path) -> list[Path]:
    """Return all files that the machine code of a module depends on, in a fixed order."""
    files, ahead = set[Path](), [path]
    while ahead:
        here = ahead.pop()
        if here not in files:
            files.add(here)
            ahead += _imported(here)
    return sorted(files)


@cache
def digest_of(path: Path) -> str:
    """Return the digest under which the machine code of a module is stored."""
    return _digest(sources_of(path))


def digest_of_all() -> str:
    """Return one digest of the sources of all kernels."""
    sources = {file for path in kernel_sources() for file in sources_of(path)}
    return _digest(sorted({*sources, SIGNATURES}))


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256(MACHINE.encode())
    for path in paths:
        digest.update((module_of(path) or path.name).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
