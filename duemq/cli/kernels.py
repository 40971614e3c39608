"""`duemq kernels warm`, and the notice of a first start that compiles kernels.

What is compiled is listed (`message_store.kernels.registry`); child processes compile it, one per
core (`message_store.kernels.compilation`).

A broker on a new store waits for what a send needs, serves, and compiles the rest meanwhile. One
that has a store waits for everything, as it may find messages that are due.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from duemq.cli.exits import Exit, fail
from duemq.cli.output import console, print_json
from message_store.clock import SystemClock
from message_store.config import StoreConfig

if TYPE_CHECKING:
    from message_store.kernels.preparation import Preparation
    from message_store.kernels.registry import Listed

NOTICE = "compiling kernels, once for this version (about a minute) ..."
NOTICE_NEW = "compiling kernels of sends, once for this version (about 10 seconds) ..."
FIRST = "send"
AFTERWARDS = ("ingest", "levels", "timers", "pending_timers", "broker")


def compile_if_needed(store: StoreConfig, *, is_replicated: bool) -> Preparation:
    """Compile what a broker on `store` waits for, with a notice; return what prepares the rest.

    Args:
        is_replicated: Whether the broker is, or may become, a replica: it needs everything, as a
            kernel that is compiled on its first call would stop reports and heartbeats.
    """
    from message_store.kernels.preparation import Preparation
    from message_store.kernels.registry import is_complete, kernels_of

    if is_complete():
        return Preparation()
    is_new = not store.commitlog_dir.exists() and not is_replicated
    print(f"duemq: {NOTICE_NEW if is_new else NOTICE}", file=sys.stderr, flush=True)
    if not is_new:
        _compile_all()
        return Preparation()
    _compile(kernels_of([FIRST]))
    return Preparation(AFTERWARDS)


def compile_for_demo(*, shown: bool) -> None:
    """Compile what a new broker and its pending messages need; the broker compiles the rest."""
    from message_store.kernels.registry import is_complete, kernels_of

    if is_complete():
        return
    kernels = kernels_of([FIRST, *AFTERWARDS])
    with console(stderr=True).status(NOTICE) if shown else nullcontext():
        _compile(kernels)


def _compile_all() -> None:
    """Compile all kernels; set the mark of a complete cache."""
    from message_store.kernels.registry import every_kernel, set_complete

    _compile(every_kernel())
    set_complete()


def _compile(kernels: Sequence[Listed]) -> None:
    """Compile kernels; load what a broker consists of meanwhile."""
    from message_store.kernels.compilation import Compilation, CompilationFailed

    with Compilation(kernels) as compilation:
        importlib.import_module("duemq.broker")
        try:
            compilation.wait()
        except CompilationFailed as error:
            fail(f"kernels cannot be compiled:\n{error}", Exit.INTERNAL)


def warm(*, force: bool, as_json: bool) -> None:
    """Compile every kernel into the cache."""
    from message_store.kernels import CACHE_DIRECTORY
    from message_store.kernels.registry import is_complete

    clock = SystemClock()
    started = clock.monotonic_s()
    needed = force or not is_complete()
    if needed and as_json:
        _compile_all()
    elif needed:
        with console(stderr=True).status(NOTICE):
            _compile_all()
    took = round(clock.monotonic_s() - started, 1)
    if as_json:
        print_json({"compiled": needed, "seconds": took, "cache": str(CACHE_DIRECTORY)})
    elif needed:
        print(f"kernels compiled in {took} s, kept in {CACHE_DIRECTORY}")
    else:
        print(f"kernels are compiled already, kept in {CACHE_DIRECTORY}")
