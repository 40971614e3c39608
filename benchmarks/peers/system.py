"""Systems that deliver delayed messages, each started on loopback with stated settings."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar

from benchmarks.bench import BackgroundLoad, Bench, Found
from tests.support.child_process import Child
from tests.support.server import Server
from tests.support.wait_until import until

READY_S = 300.0
SEND_S_MAX = 3_600


class System(ABC):
    """One system with an empty store.

    Attributes:
        name: Name of the system and its version.
        settings: Settings that differ from the defaults, and what an acknowledgement means.
        limits: What the system cannot do.
    """

    name: str
    settings: ClassVar[str]
    limits: ClassVar[str]

    @abstractmethod
    def start(self) -> None:
        """Start the processes on the present store; return when they run."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the processes that hold messages with `SIGKILL`."""

    @abstractmethod
    def setup(self) -> None:
        """Create what messages are sent to; a broker creates another topic each time."""

    @abstractmethod
    def send(self, count: int, **options: object) -> Found:
        """Send messages; return the report of the load generator."""

    @abstractmethod
    def receiving(self, count: int, **options: object) -> AbstractContextManager[BackgroundLoad]:
        """Receive in the background while the block is active."""

    @abstractmethod
    def cancel(self, count: int, due_ms: int) -> float | None:
        """Send messages due at a time far ahead and cancel all; return cancels a second."""

    @property
    @abstractmethod
    def process(self) -> Child:
        """The process that holds messages."""

    def accepts(self) -> bool:
        """Return whether one send is accepted."""
        try:
            return bool(self.send(1, delay=24 * 3_600_000, base=1 << 40, conns=1)["sent"])
        except (RuntimeError, subprocess.CalledProcessError):
            return False

    def wait_until_accepting(self) -> None:
        """Wait until a send is accepted."""
        until(self.accepts, seconds=READY_S, what=f"{self.name} accepts a send", poll_s=0.01)

    def __enter__(self) -> System:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Broker(System):
    """Broker that speaks RocketMQ's protocol."""

    def __init__(self, server: Server, wireload: Path) -> None:
        self.name = server.name
        self._server = server
        self._bench = Bench(server, wireload, 1.0)
        self._topic = ""

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.__exit__()

    def kill(self) -> None:
        self._server.kill()

    def setup(self) -> None:
        self._topic = self._bench.topic()

    def send(self, count: int, **options: object) -> Found:
        return self._bench.send(self._topic, count, **options)

    def receiving(self, count: int, **options: object) -> AbstractContextManager[BackgroundLoad]:
        return self._bench.receiving(self._topic, count, **options)

    def cancel(self, count: int, due_ms: int) -> float | None:
        from benchmarks.peers.recalls import cancels_per_second

        return cancels_per_second(self._server.namesrv_address, self._topic, count, due_ms)

    @property
    def process(self) -> Child:
        return self._server.broker


class DueMQBroker(Broker):
    """DueMQ."""

    settings = "defaults; a send is acknowledged when it is written to the page cache"
    limits = "one process uses one core for delivery; two cores do not double it"


class ApacheBroker(Broker):
    """Apache RocketMQ 5."""

    settings = (
        "heap of 4 GB, warmed up, timerWheelEnable; flow control at busy times off (else sends "
        "are refused); a send is acknowledged when it is written to the page cache"
    )
    limits = (
        "precision of a second (timerPrecisionMs is 1,000); at most 3 days ahead by default; a "
        "cancel does not report whether the message was pending"
    )


class Loaded(System):
    """System that `peerload` drives.

    Args:
        kind: Name of the system in `peerload`.
        home: Folder of its files.
    """

    kind: ClassVar[str]

    def __init__(self, home: Path, port: int, peerload: Path) -> None:
        self.home = home
        self.port = port
        self._peerload = peerload
        self._child: Child | None = None
        self._is_set_up = False
        home.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command of the server."""

    def start(self) -> None:
        self._child = Child(self.kind, self.command(), log_path=self.home / f"{self.kind}.log")

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def setup(self) -> None:
        def created() -> bool:
            self.process.must_run()
            words = self._words("setup")
            return subprocess.run(words, capture_output=True, check=False).returncode == 0

        if not self._is_set_up:
            until(created, seconds=READY_S, what=f"{self.name} is set up", poll_s=0.1)
            self._is_set_up = True

    def send(self, count: int, **options: object) -> Found:
        return self._finish(self._spawn("send", n=count, **options))

    @contextmanager
    def receiving(self, count: int, **options: object) -> Iterator[BackgroundLoad]:
        process = self._spawn("recv", n=count, **options)
        try:
            yield BackgroundLoad(process, self._finish)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def cancel(self, count: int, due_ms: int) -> float | None:
        self.send(count, due=due_ms)
        report = self._finish(self._spawn("cancel", n=count, due=due_ms))
        return float(report["per_second"])

    @property
    def process(self) -> Child:
        assert self._child is not None, f"{self.name} was not started"
        return self._child

    def _words(self, mode: str, **options: object) -> list[str]:
        words = [str(self._peerload), self.kind, mode, "-addr", f"127.0.0.1:{self.port}"]
        return words + [f"-{key}={value}" for key, value in options.items()]

    def _spawn(self, mode: str, **options: object) -> subprocess.Popen[str]:
        words = self._words(mode, **options)
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _finish(self, process: subprocess.Popen[str]) -> Found:
        out, errors = process.communicate(timeout=SEND_S_MAX)
        if process.returncode:
            raise RuntimeError(f"peerload: {errors.strip()}")
        report: Found = json.loads(out)
        return report
