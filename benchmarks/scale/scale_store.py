"""Store of the measurement: its directory, its broker, and what the phases have put into it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.bench import WIRELOAD, Bench, Metric, as_json
from delayed_delivery.level_delays import DEFAULT_LEVELS
from tests.interop.programs import go_program
from tests.support.duemq_server import DueMQ
from tests.support.wait_until import until

TOPIC = "scale"
LEVELS = f"{DEFAULT_LEVELS} 40h"  # the last one: no message of it is due during the measurement
GIB = 1 << 30
SMALL = 10_000_000  # with fewer pending timers, log files are smaller
SMALL_FILE_BYTES = 1 << 22
FREE_BYTES_MIN = 4 * GIB
QUIET_S = 120
KEYS = {
    "timerWheelEnable": "true",
    "messageDelayLevel": LEVELS,
    "diskMaxUsedSpaceRatio": "97",  # the store may fill most of the disk
    "diskSpaceCleanForciblyRatio": "98",
    "diskSpaceWarningLevelRatio": "99",
}


@dataclass(slots=True)
class State:
    """Contents of the store, saved meanwhile.

    Attributes:
        pending: Requested number of pending timers.
        filled: Timers put through the engine; timer n has the key `benchmarks.fill.key(n)`.
        sent: Timers sent through sockets.
        level: Pending messages of the last level.
        front: Log files at the start of the log in which few messages are pending.
        phases: Runs of each phase: time, machine use, figures.
    """

    pending: int = 0
    filled: int = 0
    sent: int = 0
    level: int = 0
    front: int = 0
    file_bytes: int = GIB
    phases: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class ScaleStore:
    """Store below a directory, with the broker that serves it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.directory = root / "store"
        self._path = root / "state.json"
        self.state = State()
        if self._path.exists():
            values = json.loads(self._path.read_text())
            self.state = State(
                **{f.name: values[f.name] for f in fields(State) if f.name in values}
            )

    def save(self) -> None:
        """Write the state to the disk."""
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self.state), indent=1) + "\n")
        part.rename(self._path)

    def record(self, phase: str, metrics: list[Metric], facts: dict[str, str]) -> None:
        """Add the figures of one run of a phase."""
        run = {
            "time": int(time.time()),
            "pending": self.state.pending,
            **facts,
            "metrics": as_json(metrics),
        }
        self.state.phases.setdefault(phase, []).append(run)
        self.save()

    def server(self, **keys: str) -> DueMQ:
        """Return the broker of the store, not started."""
        file_bytes = {"mappedFileSizeCommitLog": str(self.state.file_bytes)}
        return DueMQ(self.root / "broker", store_dir=self.directory, keys=KEYS | file_bytes | keys)

    @contextmanager
    def bench(self, **keys: str) -> Iterator[Bench]:
        """Run the broker while the block is open; give the driver of the load generator."""
        self.must_have_room()
        server = self.server(**keys)
        try:
            server.start()
            yield self.driver(server)
        finally:
            server.stop()

    def driver(self, server: DueMQ) -> Bench:
        """Return the driver of the load generator, with topics that no earlier phase has used."""
        prefix = f"bench-{int(time.time() * 1_000):x}"
        return Bench(server, go_program(WIRELOAD), self.scale, prefix=prefix)

    @property
    def scale(self) -> float:
        """Factor of the counts of messages other than the pending ones: 1 from 10^7 pending on."""
        return min(1.0, self.state.pending / 10_000_000)

    def must_have_room(self, more_bytes: int = 0) -> None:
        """Exit unless the disk keeps FREE_BYTES_MIN after `more_bytes`."""
        free = shutil.disk_usage(self.root).free
        if free - more_bytes < FREE_BYTES_MIN:
            raise SystemExit(
                f"{self.root}: {free / GIB:.1f} GiB are free; {more_bytes / GIB:.1f} GiB are "
                f"needed, and {FREE_BYTES_MIN / GIB:.0f} GiB must remain free"
            )

    def disk_bytes(self) -> dict[str, int]:
        """Return the allocated bytes by kind of file."""
        sizes: dict[str, int] = {}
        for entry in sorted(self.directory.iterdir()):
            words = ["du", "--summarize", "--block-size=1", str(entry)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            sizes[entry.name] = int(done.stdout.split()[0]) if done.stdout else 0
        return sizes


def wait_until_quiet(bench: Bench) -> None:
    """Wait until the broker uses almost no processor time."""
    seconds = [0.0, bench.server.broker.cpu_seconds()]

    def is_quiet() -> bool:
        seconds[:] = seconds[1], bench.server.broker.cpu_seconds()
        return seconds[1] - seconds[0] < 0.1

    until(is_quiet, seconds=QUIET_S, what="the broker quiet", poll_s=1.0)


def less(name: str, value: float, unit: str) -> Metric:
    """Return a figure of which less is better."""
    return Metric(name=name, value=value, unit=unit, better="less")


def more(name: str, value: float, unit: str) -> Metric:
    """Return a figure of which more is better."""
    return Metric(name=name, value=value, unit=unit, better="more")
