"""`duemq kernels warm`, and the notice of a first start that compiles kernels.

Kernels are compiled by use, in temporary directories: of the store, the timers, the migration and a
whole broker, with the argument types of the real ones. Child processes do it, so that the memory of
the compiler does not stay with the broker. Each starts with another part; a kernel that one of them
compiles is loaded by the others (`message_store.kernels.kernel`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from duemq.cli.exits import Exit, fail
from duemq.cli.output import console, print_json
from message_store.clock import SystemClock

NOTICE = "compiling kernels, once for this version (about a minute) ..."
WARM_TIMEOUT_S = 1_200
IN_CHILD = "DUEMQ_WARMING"
PARTS = 4  # see `main`


def compile_if_needed() -> None:
    """Compile with a visible notice unless it was done before."""
    from message_store.warm import is_complete

    if is_complete() or os.environ.get(IN_CHILD):
        return
    print(f"duemq: {NOTICE}", file=sys.stderr, flush=True)
    _run_children()


def _run_children() -> None:
    """Compile all kernels in child processes; set the mark of a complete cache."""
    from message_store.warm import set_complete

    top = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (top, os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, IN_CHILD: "1", "PYTHONPATH": path}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "duemq.cli.kernels", str(first)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(min(PARTS, os.cpu_count() or 1))
    ]
    try:
        for child in children:
            _, text = child.communicate(timeout=WARM_TIMEOUT_S)
            if child.returncode:
                fail(f"kernels cannot be compiled:\n{text[-4_000:]}", Exit.INTERNAL)
    finally:
        for child in children:
            child.kill()
            child.wait()
    set_complete()


def warm(*, force: bool, as_json: bool) -> None:
    """Compile every kernel into the cache."""
    from message_store.kernels import CACHE_DIRECTORY
    from message_store.warm import is_complete

    clock = SystemClock()
    started = clock.monotonic_s()
    needed = force or not is_complete()
    if needed and as_json:
        _run_children()
    elif needed:
        with console(stderr=True).status(NOTICE):
            _run_children()
    took = round(clock.monotonic_s() - started, 1)
    if as_json:
        print_json({"compiled": needed, "seconds": took, "cache": str(CACHE_DIRECTORY)})
    elif needed:
        print(f"kernels compiled in {took} s, kept in {CACHE_DIRECTORY}")
    else:
        print(f"kernels are compiled already, kept in {CACHE_DIRECTORY}")


def main(first: int) -> None:
    """Compile in this process, beginning with one of the parts."""
    from duemq.warm import use_a_broker
    from message_store.warm import warm_store
    from migration.warm import warm_migration
    from timer_store.warm import warm_timers

    parts = (warm_timers, lambda: asyncio.run(use_a_broker()), warm_store, warm_migration)
    assert len(parts) == PARTS
    for part in parts[first:] + parts[:first]:
        part()


if __name__ == "__main__":
    main(int(sys.argv[1]))
