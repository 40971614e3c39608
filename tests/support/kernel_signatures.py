"""Recorder of the kernels' argument types, from which kernels are compiled ahead.

    python -m tests.support.kernel_signatures           record all groups, write signatures.txt
    python -m tests.support.kernel_signatures GROUP...  print the kernels that workloads call

Each group's workload runs in a child of one process that has imported the modules. A child that
compiles also compiles the kernels that other kernels call; a second child loads the compiled
kernels, and therefore lists only those that Python code calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from message_store.kernels import PACKAGES, SIGNATURES, registry
from tests.support.packages import TOP
from tests.support.type_texts import layouts_of, text_of

HEAD = """\
# Kernels by the types that Python calls them with, and the groups that need them.
# Written by `python -m tests.support.kernel_signatures`; read by registry.py.
"""
COMPILED = "compiled"
ROUNDS_MAX = 3


def run(group: str) -> None:
    """Run the workload of a group in this process; print the kernels that it called."""
    from tests.support.kernel_work import broker, levels, migrations, store, timers

    work = {
        "send": broker.send_messages,
        "ingest": broker.ingest_messages,
        "levels": levels.deliver_levels,
        "timers": timers.deliver_timers,
        "pending_timers": timers.use_timers,
        "migration": migrations.migrate_levels,
        "store": store.use_store,
        "broker": broker.run_broker,
        "history": store.search_keys,
    }[group]
    loading = patch.object(registry, "load")  # only called kernels, not those loaded ahead
    with loading, tempfile.TemporaryDirectory(prefix="duemq-kernels-") as directory:
        work(Path(directory))
    lines = [COMPILED] if compiled_here() else called_here()
    sys.stdout.write("".join(f"{group} {line}\n" for line in lines))


GROUPS = (
    "send",
    "ingest",
    "levels",
    "timers",
    "pending_timers",
    "migration",
    "store",
    "broker",
    "history",
)


def kernels_here() -> dict[str, Any]:
    """Return the kernels of all imported modules by their dotted names."""
    return {
        f"{name}.{attribute}": value
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in PACKAGES
        for attribute, value in vars(module).items()
        if hasattr(value, "py_func") and value.py_func.__module__ == name
    }


def called_here() -> list[str]:
    """Return the compiled or loaded kernels of this process, with their argument types."""
    modules = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    layouts = layouts_of(modules)
    return sorted(
        f"{name}({text_of(signature, layouts)})"
        for name, kernel in kernels_here().items()
        for signature in kernel.overloads
    )


def compiled_here() -> bool:
    """Return whether this process compiled a kernel instead of loading it."""
    return any(kernel.stats.cache_misses for kernel in kernels_here().values())


def run_apart(group: str) -> None:
    """Run the workload of a group in a child process, which prints the kernels that it called."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(group)
            sys.stdout.flush()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"the workload of {group} failed")


def recorded(groups: Collection[str]) -> dict[str, list[str]]:
    """Return the kernels that the workload of each group calls, recorded in other processes.

    Raises:
        RuntimeError: A workload failed, or its second run compiled a kernel again.
    """
    lists: dict[str, list[str]] = {}
    for _ in range(ROUNDS_MAX + 1):
        ahead = [group for group in groups if group not in lists]
        if not ahead:
            return lists
        command = [sys.executable, "-m", "tests.support.kernel_signatures", *ahead]
        done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        lines = [line.partition(" ") for line in done.stdout.splitlines()]
        compiling = {group for group, _, line in lines if line == COMPILED}
        for group in set(ahead) - compiling:
            lists[group] = [line for name, _, line in lines if name == group]
    raise RuntimeError(f"each run of a workload compiles a kernel: {set(groups) - lists.keys()}")


def write_list() -> None:
    """Record all groups and write the list."""
    groups_of: defaultdict[str, list[str]] = defaultdict(list)
    lists = recorded(GROUPS)
    for group in GROUPS:
        for line in lists[group]:
            groups_of[line].append(group)
    listed = "".join(f"{' '.join(groups_of[line])}  {line}\n" for line in sorted(groups_of))
    SIGNATURES.write_text(HEAD + listed)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        from tests.support.kernel_work import broker, levels, migrations, store, timers  # noqa: F401

        for name in sys.argv[1:]:
            run_apart(name)
    else:
        write_list()
