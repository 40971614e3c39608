"""`duemq kernels warm`, and the notice of a first start that has to compile.

Kernels are compiled by using a whole broker once, in a temporary directory: those are the very
argument types that a real one uses. A child process does it, so that the memory that compiling
takes does not stay with the broker.
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


def compile_if_needed() -> None:
    """Compile with a visible notice unless it was done before."""
    from message_store.warm import is_complete

    if is_complete() or os.environ.get(IN_CHILD):
        return
    print(f"duemq: {NOTICE}", file=sys.stderr, flush=True)
    _run_child()


def _run_child() -> None:
    command = [sys.executable, "-m", "duemq.cli.kernels"]
    top = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (top, os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, IN_CHILD: "1", "PYTHONPATH": path}
    done = subprocess.run(
        command,
        check=False,
        env=environment,
        timeout=WARM_TIMEOUT_S,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        fail(f"kernels cannot be compiled:\n{done.stderr[-4_000:]}", Exit.INTERNAL)


def warm(*, force: bool, as_json: bool) -> None:
    """Compile every kernel into the cache."""
    from message_store.kernels import CACHE_DIRECTORY
    from message_store.warm import is_complete

    clock = SystemClock()
    started = clock.monotonic_s()
    needed = force or not is_complete()
    if needed and as_json:
        _run_child()
    elif needed:
        with console(stderr=True).status(NOTICE):
            _run_child()
    took = round(clock.monotonic_s() - started, 1)
    if as_json:
        print_json({"compiled": needed, "seconds": took, "cache": str(CACHE_DIRECTORY)})
    elif needed:
        print(f"kernels compiled in {took} s, kept in {CACHE_DIRECTORY}")
    else:
        print(f"kernels are compiled already, kept in {CACHE_DIRECTORY}")


def main() -> None:
    """Compile, in this process."""
    from duemq.warm import use_a_broker
    from message_store.warm import set_complete, warm_store
    from migration.warm import warm_migration
    from timer_store.warm import warm_timers

    warm_store()
    warm_timers()
    warm_migration()
    asyncio.run(use_a_broker())
    set_complete()


if __name__ == "__main__":
    main()
