"""Threads of brokers, stores and clients that a test file has left running.

They count in the limits of other files: numbers of threads, growth of memory, files in use. If one
draws a random number during a test of Hypothesis, that test fails.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

NAMES: Final = (
    "OtelBatch",
    "duemq",
    "end of traces",
    "flusher",
    "http",
    "index",
    "read-ahead",
    "replication",
    "timer slots",
)
END_S: Final = 5.0  # for threads that are just ending

_reported: set[threading.Thread] = set()


def check_threads(file: Path) -> None:
    """Check that no thread of a broker, store or client runs after the tests of a file.

    Raises:
        AssertionError: Threads are left; each is reported once.
    """
    left = {each for each in threading.enumerate() if each.name.startswith(NAMES)} - _reported
    for thread in left:
        thread.join(END_S / len(left))
    left = {each for each in left if each.is_alive()}
    _reported.update(left)
    names = sorted(each.name for each in left)
    assert not left, f"{file} leaves a broker, a store or a client open; its threads: {names}"
