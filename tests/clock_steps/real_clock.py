"""Broker process whose wall clock is stepped, with what the libraries do at such a step.

A preloaded library (`clock_shim.c`) adds an offset to the wall clock of the process.

python -m tests.clock_steps.real_clock    all steps; one JSON line for each
"""

from __future__ import annotations

import json
import mmap
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.support.duemq_server import DueMQ
from tests.support.remoting_requests import call, max_offset
from tests.support.requirements import need_commands
from tests.support.wait_until import Stopwatch, now_ms, until

SHIM: Final = Path(__file__).with_name("clock_shim.c")
DAY_MS: Final = 86_400_000
STEPS: Final = {
    "5 seconds": 5_000,
    "3 hours": 3 * 3_600_000,
    "400 days": 400 * DAY_MS,
    "10 years": 3_650 * DAY_MS,
}
PHASES: Final = ("running", "stopped", "killed")
GAP_S_MAX, PROCESSOR_S_MAX, MEMORY_BYTES_MAX = 2.0, 2.0, 50 << 20
WATCH_S: Final = 4.0  # longer than the interval of every job that a step makes due
DUE_S_MAX: Final = 60.0
QUERY_MESSAGE, SEND_MESSAGE = 12, 10
TOPIC: Final = "Steps"


@dataclass(slots=True)
class Measured:
    """Effect of one step.

    Attributes:
        gap_s: Longest time without a response to a client that sends all the time.
        processor_s: Processor time of the broker while the client sends, 4 s.
        memory_bytes: Additional anonymous memory.
    """

    gap_s: float
    processor_s: float
    memory_bytes: int


def build_shim(folder: Path) -> Path:
    """Compile the library and return its path.

    Raises:
        Missing: There is no C compiler.
    """
    need_commands("cc")
    library = folder / "clock_shim.so"
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SHIM, "-ldl"],
        check=True,
    )
    return library


class SteppedBroker(DueMQ):
    """DueMQ broker with a wall clock of its own.

    Args:
        home: Directory of all files.
        shim: Library of `build_shim`.
    """

    def __init__(self, home: Path, shim: Path) -> None:
        super().__init__(home, keys={"transactionCheckInterval": "1000"})
        self._offset = home / "clock"
        self._offset.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(shim), "CLOCK_SHIM": str(self._offset)}
        self.offset_ms = 0

    def step(self, step_ms: int) -> None:
        """Step the wall clock of the process, also of the next one."""
        self.offset_ms += step_ms
        with self._offset.open("r+b") as file, mmap.mmap(file.fileno(), 8) as page:
            page[:] = struct.pack("=q", self.offset_ms)  # one store: the process sees no part of it

    def send(self, delay_ms: int = 0) -> int:
        """Send a message, or a timer; return the offset of its queue before it."""
        due_ms = now_ms() + self.offset_ms + delay_ms
        properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02" if delay_ms else ""
        before = max_offset(self.broker_port, TOPIC, 0)
        fields = {
            "producerGroup": "P",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "1",
            "queueId": "0",
            "sysFlag": "0",
            "flag": "0",
            "bornTimestamp": str(now_ms()),
            "properties": properties,
            "batch": "false",
        }
        response = call(self.broker_port, SEND_MESSAGE, fields, b"body")
        assert response.code == 0, response.remark
        return before

    def prepare(self) -> None:
        """Create the topic, wait for all kernels, and send messages that become due later."""
        self.create_topic(TOPIC, queue_count=1)
        query = {
            "topic": TOPIC,
            "key": "x",
            "maxNum": "1",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 60),
        }
        call(self.broker_port, QUERY_MESSAGE, query)  # answered when all kernels are compiled
        for delay_ms in (3_600_000, 2 * DAY_MS):
            self.send(delay_ms)
        self.check_delivery()

    def check_delivery(self) -> None:
        """Check that a timer of the current clock is delivered."""
        before = self.send(1_000)
        until(
            lambda: max_offset(self.broker_port, TOPIC, 0) > before,
            seconds=DUE_S_MAX,
            what="delivery of a timer of 1 s",
        )

    def watch(self, memory_bytes: int) -> Measured:
        """Send for some seconds; return what the client and the machine see.

        Args:
            memory_bytes: Anonymous memory before.
        """
        watch, processor_s, gap_s = Stopwatch(), self.broker.cpu_seconds(), 0.0

        def sent_long_enough() -> bool:
            nonlocal gap_s
            sent = Stopwatch()
            self.send()
            gap_s = max(gap_s, sent.seconds)
            return watch.seconds > WATCH_S

        until(sent_long_enough, seconds=DUE_S_MAX, what="responses after a step")
        processor_s = self.broker.cpu_seconds() - processor_s
        return Measured(gap_s, processor_s, self.memory_bytes - memory_bytes)

    @property
    def memory_bytes(self) -> int:
        """Anonymous memory of the process."""
        return self.broker.memory_bytes()["anonymous"]


def run_step(home: Path, shim: Path, step_ms: int, phase: str) -> Measured:
    """Step the clock of a broker that runs, or between its end and its start."""
    with SteppedBroker(home, shim) as broker:
        broker.prepare()
        broker.watch(0)  # its buffers have their size
        memory_bytes = broker.memory_bytes
        if phase != "running":
            (broker.kill if phase == "killed" else broker.stop)()
        broker.step(step_ms)
        if phase != "running":
            broker.start()
        measured = broker.watch(memory_bytes)
        broker.check_delivery()
    return measured


def runs() -> Iterator[dict[str, object]]:
    """Yield a report for each step, in both directions, and each phase."""
    home = Path(tempfile.mkdtemp(prefix="real-clock-"))
    shim = build_shim(home)
    try:
        for name, step_ms in STEPS.items():
            for direction, signed_ms in (("forward", step_ms), ("back", -step_ms)):
                for phase in PHASES:
                    folder = Path(tempfile.mkdtemp(dir=home))
                    measured = run_step(folder, shim, signed_ms, phase)
                    yield {"step": f"{name} {direction}", "phase": phase, **asdict(measured)}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> int:
    """Run all steps; return 1 if one costs too much."""
    failed = False
    for report in runs():
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        too_long = float(str(report["gap_s"])) > GAP_S_MAX
        failed |= too_long or int(str(report["memory_bytes"])) > MEMORY_BYTES_MAX
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
