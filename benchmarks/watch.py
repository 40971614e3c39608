"""Periodic samples of a process: processor time, memory, bytes written. Linux only."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.support.wait_until import now_ms

SAMPLE_INTERVAL_S = 0.05


class Process(Protocol):
    """Interface of a sampled process, such as `tests.support.child_process.Child`."""

    @property
    def pid(self) -> int: ...
    def memory_bytes(self) -> dict[str, int]: ...
    def cpu_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample of a process.

    Attributes:
        written_bytes: Bytes that the process wrote, including pages it dirtied in mapped files.
    """

    at_ms: int
    cpu_s: float
    anonymous_bytes: int
    written_bytes: int


@dataclass(slots=True)
class Watch:
    """Samples of one process, in order of time."""

    samples: list[Sample] = field(default_factory=list)

    def at(self, time_ms: int) -> Sample:
        """Return the first sample at or after a time; if there is none, the last sample."""
        index = bisect_left(self.samples, time_ms, key=lambda sample: sample.at_ms)
        return self.samples[min(index, len(self.samples) - 1)]

    def cpu_s(self, first_ms: int, end_ms: int) -> float:
        """Return the processor time between two times, in seconds."""
        return self.at(end_ms).cpu_s - self.at(first_ms).cpu_s

    def peak_bytes(self, first_ms: int, end_ms: int) -> int:
        """Return the peak anonymous memory between two times, in bytes."""
        inside = [s.anonymous_bytes for s in self.samples if first_ms <= s.at_ms <= end_ms]
        return max([self.at(first_ms).anonymous_bytes, *inside])


@contextmanager
def watching(process: Process) -> Iterator[Watch]:
    """Sample a process while the block is active."""
    watch, ended = Watch(), threading.Event()

    def take_samples() -> None:
        while True:
            try:
                watch.samples.append(sample(process))
            except OSError:  # the process has ended
                return
            if ended.wait(SAMPLE_INTERVAL_S):
                return

    watch.samples.append(sample(process))
    thread = threading.Thread(target=take_samples, name="watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def sample(process: Process) -> Sample:
    """Take one sample."""
    return Sample(
        now_ms(),
        process.cpu_seconds(),
        process.memory_bytes().get("anonymous", 0),
        written_bytes(process.pid),
    )


def written_bytes(pid: int) -> int:
    """Return the bytes a process wrote, including pages it dirtied in mapped files."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes"):
            return int(line.split()[1])
    return 0
