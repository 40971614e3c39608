"""Event loop of tests without other tasks: `asyncio.to_thread` runs in the calling thread.

`asyncio.run` starts and ends a thread for each checkpoint that a test writes.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class InlineExecutor(ThreadPoolExecutor):
    """Executor that calls functions when they are submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


@cache
def _runner() -> asyncio.Runner:
    """Return the runner of this process."""
    runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
    runner.get_loop().set_default_executor(InlineExecutor(1))
    atexit.register(runner.close)
    return runner


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end."""
    return _runner().run(work)
