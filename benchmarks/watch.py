"""Looks at a process again and again: processor time, memory, what it had written. Linux only."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.support.wait_until import now_ms

EVERY_S = 0.05


class Process(Protocol):
    """What is looked at; `tests.support.child_process.Child` is one."""

    @property
    def pid(self) -> int: ...
    def memory_bytes(self) -> dict[str, int]: ...
    def cpu_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One look; `written_bytes`: of pages that the process made dirty, or wrote."""

    at_ms: int
    cpu_s: float
    anonymous_bytes: int
    written_bytes: int


@dataclass(slots=True)
class Watch:
    """All looks at one process, in order."""

    samples: list[Sample] = field(default_factory=list)

    def at(self, moment_ms: int) -> Sample:
        """Return the first look at a moment or behind it, else the last."""
        found = bisect_left(self.samples, moment_ms, key=lambda sample: sample.at_ms)
        return self.samples[min(found, len(self.samples) - 1)]

    def cpu_s(self, first_ms: int, end_ms: int) -> float:
        """Return the processor time between two moments."""
        return self.at(end_ms).cpu_s - self.at(first_ms).cpu_s

    def peak_bytes(self, first_ms: int, end_ms: int) -> int:
        """Return the most anonymous memory between two moments."""
        inside = [s.anonymous_bytes for s in self.samples if first_ms <= s.at_ms <= end_ms]
        return max([self.at(first_ms).anonymous_bytes, *inside])


@contextmanager
def watching(process: Process) -> Iterator[Watch]:
    """Look at a process while the block runs."""
    watch, ended = Watch(), threading.Event()

    def look() -> None:
        while True:
            try:
                watch.samples.append(sample(process))
            except OSError:  # it has ended
                return
            if ended.wait(EVERY_S):
                return

    watch.samples.append(sample(process))
    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def sample(process: Process) -> Sample:
    """Look once."""
    return Sample(
        now_ms(), process.cpu_seconds(), process.memory_bytes().get("anonymous", 0),
        written_bytes(process.pid),
    )  # fmt: skip


def written_bytes(pid: int) -> int:
    """Return what a process caused to be written, pages that it made dirty in mapped files too."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes"):
            return int(line.split()[1])
    return 0
