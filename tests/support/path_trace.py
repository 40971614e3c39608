"""Trace of the product's code: the files whose functions run in a block, Python and compiled."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from numba.core.dispatcher import Dispatcher

TOP = Path(__file__).resolve().parents[2]
PACKAGES = tuple(
    f"{TOP / name}/"
    for name in (
        "duemq_common",
        "message_store",
        "delayed_delivery",
        "schedule_service",
        "timer_store",
        "migration",
        "spark_reconciliation",
        "duemq",
    )
)

MONITORED = "_enable_sysmon"
"""Attribute of Numba's dispatchers that NUMBA_ENABLE_SYS_MONITORING sets."""


class PathTrace:
    """Files of the product that run, by thread and by outermost function.

    A profile function sees each call of a Python function, and each call of an entry point of a
    kernel (`message_store.kernels.kernel.entry`). Calls of Numba's dispatchers are seen by it in
    Python 3.11, and by `sys.monitoring` since Python 3.12. Functions that a kernel calls are
    inlined in it and are not seen.
    """

    def __init__(self) -> None:
        self._records = False
        self._seen: dict[tuple[str, str], set[CodeType]] = defaultdict(set)
        self._entries: dict[int, tuple[str, Any]] = {}  # by id: thread, builtin function

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe this thread and all threads that start in the block."""
        before = sys.getprofile()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs in the block, instead of what was recorded before."""
        self._seen.clear()
        self._entries.clear()
        self._records = True
        try:
            with _monitored_kernels(self._on_kernel):
                yield
        finally:
            self._records = False

    def _on_kernel(self, code: CodeType) -> None:
        thread = threading.current_thread().name
        self._seen[thread, _outermost(sys._getframe())].add(code)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._records:
            return
        thread = threading.current_thread().name
        if event == "c_call":
            self._entries[id(argument)] = thread, argument
        elif event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            self._seen[thread, _outermost(frame)].add(frame.f_code)

    def files(self, *threads: str, without: frozenset[str] = frozenset()) -> set[str]:
        """Return the files that ran in some threads, relative to the top directory.

        Args:
            without: Names of outermost functions; what they call is left out.
        """
        codes = set[CodeType]()
        for (thread, root), seen in self._seen.items():
            if thread in threads and root not in without:
                codes |= seen
        kernels = _kernels_by_entry()
        for number, (thread, _) in self._entries.items():
            if thread in threads and number in kernels:
                codes.add(kernels[number])
        return {str(Path(code.co_filename).relative_to(TOP)) for code in codes}

    def roots(self) -> dict[tuple[str, str], list[str]]:
        """Return the functions that ran, by thread and outermost function."""
        return {
            root: sorted(
                f"{Path(code.co_filename).relative_to(TOP)}: {code.co_name}" for code in codes
            )
            for root, codes in self._seen.items()
        }


def _outermost(frame: FrameType) -> str:
    """Return the name of the outermost function of the product on a stack."""
    name = ""
    each: FrameType | None = frame
    while each is not None:
        if each.f_code.co_filename.startswith(PACKAGES):
            name = each.f_code.co_qualname
        each = each.f_back
    return name


@contextmanager
def _monitored_kernels(on_call: Callable[[CodeType], None]) -> Iterator[None]:
    """Call a function with the code of each kernel whose dispatcher is called in the block."""
    if sys.version_info < (3, 12):
        yield
        return
    kernels = _kernels()
    codes = {each.py_func.__code__ for each in kernels}

    def on_start(code: CodeType, offset: int) -> None:
        if code in codes:
            on_call(code)

    monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID
    for each in kernels:
        setattr(each, MONITORED, True)
    monitoring.use_tool_id(tool, "path trace")
    monitoring.register_callback(tool, monitoring.events.PY_START, on_start)
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        yield
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.free_tool_id(tool)
        for each in kernels:
            setattr(each, MONITORED, False)


def _kernels() -> list[Any]:
    """Return the kernels of all loaded modules."""
    modules = [module for module in sys.modules.values() if is_product(module)]
    values = [value for module in modules for value in vars(module).values()]
    return [value for value in values if isinstance(value, Dispatcher)]


def _kernels_by_entry() -> dict[int, CodeType]:
    """Return the code of every loaded kernel by the id of its compiled functions."""
    return {
        id(compiled.entry_point): each.py_func.__code__
        for each in _kernels()
        for compiled in each.overloads.values()
    }


def is_product(module: ModuleType) -> bool:
    """Return whether a module belongs to the product."""
    return str(getattr(module, "__file__", "")).startswith(PACKAGES)
