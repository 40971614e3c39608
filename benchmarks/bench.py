"""Benchmark loads, metrics, and the driver of the load generator `wireload`."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from duemq.auth.signature import Credentials
from tests.support.remoting_requests import max_offset
from tests.support.server import BROKER_NAME, Server

LEVELS_S = (
    1,
    5,
    10,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1_200,
    1_800,
    3_600,
    7_200,
)
WIRELOAD = Path(__file__).parent / "wireload"
QUEUE_COUNT = 4
BODY_BYTES = 100
WARM_MESSAGES = 100_000
WARM_DELAY_MS = 1_000
SEND_S_MAX = 3_600
TOPIC_S_MAX = 60
Found = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One measured figure."""

    name: str
    value: float
    unit: str
    better: Literal["more", "less"]


class GroupRun(Protocol):
    """Function that measures a group of brokers in an empty folder."""

    def __call__(self, home: Path, scale: float, *, is_apache: bool) -> list[Metric]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Benchmark, selectable by name; exactly one of `run`, `alone` and `group` is set.

    Attributes:
        what: Description.
        run: Function that measures a warmed-up broker.
        alone: Function that measures the library, given an empty folder and the scale.
        group: Function that measures a group of brokers.
        keys: Additional keys of broker.conf; if there are any, `run` warms up the broker itself.
        signed: Whether the broker has accounts, and an ordinary user signs every request.
        ours_only: Whether Apache's broker does not support the load, or takes too long.
        apaches_only: Whether DueMQ refuses the load.
    """

    name: str
    what: str
    run: Callable[[Bench], list[Metric]] | None = None
    alone: Callable[[Path, float], list[Metric]] | None = None
    group: GroupRun | None = None
    default: bool = True
    timers: bool = False
    migration: bool = False
    replication: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    signed: bool = False
    ours_only: bool = False
    apaches_only: bool = False


@dataclass(slots=True)
class Bench:
    """Driver of the load generator against one running broker.

    Args:
        wireload: Path of the load generator.
        scale: Factor of all message counts.
        credentials: Credentials that sign every request; None: the server has no accounts.
        prefix: Prefix of the names of topics.
    """

    server: Server
    wireload: Path
    scale: float
    credentials: Credentials | None = None
    prefix: str = "bench"
    _topics: int = field(default=0)

    def count(self, messages: int) -> int:
        """Return a message count multiplied by the scale, at least 16."""
        return max(16, int(messages * self.scale))

    def topic(self) -> str:
        """Create a new topic."""
        self._topics += 1
        name = f"{self.prefix}-{self._topics}"
        self._run(self._words("mk", name))
        return name

    def send(self, topic: str, count: int, **options: object) -> Found:
        """Send `count` messages and return the load generator's report."""
        return self._finish(self._spawn("send", topic, count, options))

    def recv(self, topic: str, count: int, **options: object) -> Found:
        """Receive until `count` messages have arrived, or none arrives for a while."""
        return self._finish(self._spawn("recv", topic, count, options))

    def pop(self, topic: str, count: int, **options: object) -> Found:
        """Pop and acknowledge until `count` messages have arrived, or none arrives for a while."""
        options |= {"broker_name": BROKER_NAME}
        return self._finish(self._spawn("pop", topic, count, options))

    def resend(self, level: int, delay_ms: int, count: int) -> Found:
        """Read `count` pending messages of a level, and send each again as a timer."""
        options: dict[str, object] = {"level": level, "level_delay": delay_ms}
        return self._finish(self._spawn("resend", "-", count, options))

    def receiving(
        self, topic: str, count: int, **options: object
    ) -> AbstractContextManager[BackgroundLoad]:
        """Receive in the background while the block is active."""
        return self._in_background(self._spawn("recv", topic, count, options))

    def sending(
        self, topic: str, count: int, **options: object
    ) -> AbstractContextManager[BackgroundLoad]:
        """Send in the background while the block is active."""
        return self._in_background(self._spawn("send", topic, count, options))

    @contextmanager
    def _in_background(self, process: subprocess.Popen[str]) -> Iterator[BackgroundLoad]:
        try:
            yield BackgroundLoad(process, self._finish)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def warm_up(self) -> None:
        """Send and receive every kind of message, so that JIT compilers finish before the load."""
        self._warm({})
        self._warm({"level": 1})

    def warm_up_timers(self) -> float:
        """Send and receive timers, for loads that do not measure the first ones; return sends/s."""
        return self._warm({"delay": WARM_DELAY_MS})

    def _warm(self, options: dict[str, int]) -> float:
        count, topic = self.count(WARM_MESSAGES), self.topic()
        sent = self.send(topic, count, **options)
        self.recv(topic, count)
        return float(sent["per_second"])

    def delivered(self, topic: str) -> int:
        """Return the number of messages in the queues of a topic."""
        queues = range(QUEUE_COUNT)
        return sum(max_offset(self.server.broker_port, topic, queue) for queue in queues)

    @contextmanager
    def cpu(self) -> Iterator[list[float]]:
        """Measure the broker's processor seconds during the block; append them at its end."""
        seconds: list[float] = []
        before = self.server.broker.cpu_seconds()
        yield seconds
        seconds.append(self.server.broker.cpu_seconds() - before)

    def _spawn(
        self, mode: str, topic: str, count: int, options: dict[str, object]
    ) -> subprocess.Popen[str]:
        words = [*self._words(mode, topic), "-json", "-n", str(count)]
        for key, value in ({"size": BODY_BYTES} | options).items():
            words.append(f"-{key.replace('_', '-')}={str(value).lower()}")
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _words(self, mode: str, topic: str) -> list[str]:
        words = [str(self.wireload), mode, "-addr", self.server.broker_address]
        words += ["-topic", topic, "-queues", str(QUEUE_COUNT)]
        if self.credentials is not None:
            words += ["-access-key", self.credentials.access_key]
            words += ["-secret-key", self.credentials.secret]
        return words

    def _run(self, words: list[str]) -> None:
        subprocess.run(words, check=True, timeout=TOPIC_S_MAX)

    def _finish(self, process: subprocess.Popen[str]) -> Found:
        try:
            out, errors = process.communicate(timeout=SEND_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        if process.returncode:
            raise RuntimeError(f"wireload: {errors.strip()}")
        report: Found = json.loads(out)
        return report


@dataclass(frozen=True, slots=True)
class BackgroundLoad:
    """Load generator in the background; call it to wait for its report."""

    process: subprocess.Popen[str]
    finish: Callable[[subprocess.Popen[str]], Found]

    def __call__(self) -> Found:
        return self.finish(self.process)

    def stop(self) -> Found:
        """Interrupt the load generator and return its report."""
        self.process.send_signal(signal.SIGINT)
        return self()


def level_of_at_least(seconds: float) -> tuple[int, int]:
    """Return the first level with a delay of at least `seconds`, and its delay in ms."""
    for index, delay_s in enumerate(LEVELS_S):
        if delay_s >= seconds:
            return index + 1, delay_s * 1_000
    raise ValueError(f"no level has a delay of {seconds} s or more")


def delivery_faults(received: Found, sent: Found) -> list[Metric]:
    """Return counts of delivery errors: accepted messages lost, duplicated, early or corrupt."""
    counts = {
        "lost": received["lost"] - sent["rejected"],
        "duplicates": received["duplicates"],
        "early": received["early"],
        "damaged": received["corrupt"],
    }
    return [Metric(name=n, value=v, unit="messages", better="less") for n, v in counts.items()]


def as_json(metrics: list[Metric]) -> list[dict[str, Any]]:
    """Return metrics as plain dictionaries."""
    return [asdict(metric) for metric in metrics]
