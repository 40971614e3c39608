"""`duemq kernels warm`, and kernel compilation at the first start of a broker.

`message_store.kernels.registry` lists the kernels; child processes compile them, one per core
(`message_store.kernels.compilation`).

A broker with a new store waits for the kernels of sends and deliveries: its first messages are not
late. It compiles the others while it serves. A broker with an existing store waits for all kernels.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duemq.cli.cache_home import replace_read_only_cache
from duemq.cli.exits import Exit, fail
from duemq.cli.output import console, notice, print_json
from duemq_common.clock import SystemClock
from duemq_common.existence import exists
from message_store.config import StoreConfig

if TYPE_CHECKING:
    from message_store.kernels.compilation import Report
    from message_store.kernels.preparation import Preparation
    from message_store.kernels.registry import KernelEntry

NOTICE = "compiling kernels, once for this version and processor (about a minute),"
NOTICE_NEW = (
    "compiling kernels of sends and deliveries, once for this version and processor "
    "(about 30 seconds),"
)
STATUS = "compiling kernels (about a minute) ..."
AHEAD = "`duemq kernels warm` does it ahead"
FIRST = ("send", "levels", "timers")
"""Groups that a broker with a new store waits for."""
AFTERWARDS = ("ingest", "pending_timers", "history", "broker")
"""Groups to compile while it serves."""


def compile_if_needed(store: StoreConfig, *, is_replicated: bool) -> Preparation:
    """Compile the kernels that a broker on `store` waits for; return the preparation of the rest.

    Args:
        is_replicated: Whether the broker is or may become a replica. It then waits for all kernels:
            compilation at the first call would delay acknowledgements and heartbeats.
    """
    from message_store.kernels import cache_directory
    from message_store.kernels.preparation import Preparation
    from message_store.kernels.registry import is_complete, kernels_of

    if is_complete():
        return Preparation()
    _replace_read_only_cache()
    is_new = not exists(store.commitlog_dir) and not is_replicated
    text = f"{NOTICE_NEW if is_new else NOTICE} into {cache_directory()}; {AHEAD}"
    print(f"duemq: {text}", file=sys.stderr, flush=True)
    if not is_new:
        _compile_all(_print_progress)
        return Preparation()
    compile_kernels(kernels_of(FIRST), _print_progress)
    return Preparation(AFTERWARDS)


def _print_progress(begun: int, count: int) -> None:
    print(f"duemq: compiling kernel {begun} of {count}", file=sys.stderr, flush=True)


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Show the progress on standard error while the block runs."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield _print_progress
        return
    with out.status(STATUS) as status:
        yield lambda begun, count: status.update(f"{STATUS} {begun} of {count}")


def _replace_read_only_cache() -> None:
    if text := replace_read_only_cache():
        notice(text)


def _compile_all(report: Report | None = None) -> None:
    """Compile all kernels, then mark the cache as complete."""
    from message_store.kernels.registry import every_kernel, set_complete

    compile_kernels(every_kernel(), report)
    set_complete()


def compile_kernels(kernels: Sequence[KernelEntry], report: Report | None) -> None:
    """Compile kernels into the cache; import the broker meanwhile."""
    from message_store.kernels.compilation import Compilation, CompilationFailed

    with Compilation(kernels) as compilation:
        importlib.import_module("duemq.broker.broker")
        try:
            compilation.wait(report)
        except CompilationFailed as error:
            fail(f"kernels cannot be compiled:\n{error}", Exit.INTERNAL)


def warm(*, force: bool, as_json: bool) -> None:
    """Compile every kernel into the cache."""
    from message_store.kernels import cache_directory
    from message_store.kernels.registry import is_complete

    clock = SystemClock()
    started = clock.monotonic_s()
    needed = force or not is_complete()
    if needed:
        _replace_read_only_cache()
    if needed and as_json:
        _compile_all()
    elif needed:
        with shown_progress() as report:
            _compile_all(report)
    took = round(clock.monotonic_s() - started, 1)
    if as_json:
        print_json({"compiled": needed, "seconds": took, "cache": str(cache_directory())})
    elif needed:
        print(f"kernels compiled in {took} s, stored in {cache_directory()}")
    else:
        print(f"kernels are already compiled, stored in {cache_directory()}")
