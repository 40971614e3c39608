"""What a load has at hand: a running broker, the load generator, and a way to report figures."""

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
    """One figure that a load found."""

    name: str
    value: float
    unit: str
    better: Literal["more", "less"]


class Group(Protocol):
    """Measures a group of brokers in an empty folder."""

    def __call__(self, home: Path, scale: float, *, is_apache: bool) -> list[Metric]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A work item of the benchmark, selectable by its name.

    Attributes:
        run: what it does with a broker that is warmed up.
        alone: instead: what it does with our library in an empty folder, in a scale.
        group: instead: what it does with a group of Apache's brokers, or of ours.
        keys: More keys of broker.conf. The load warms such a broker up itself.
        signed: With accounts: a user that is no super user signs every request.
        ours_only: Apache's broker cannot do it, or not in bearable time.
        apaches_only: Our broker refuses it.
    """

    name: str
    what: str
    run: Callable[[Bench], list[Metric]] | None = None
    alone: Callable[[Path, float], list[Metric]] | None = None
    group: Group | None = None
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
    """A broker under test and the load generator.

    Args:
        scale: Every count of messages is multiplied by this.
        who: Signs every request; None: the server has no accounts.
    """

    server: Server
    wireload: Path
    scale: float
    who: Credentials | None = None
    _topics: int = field(default=0)

    def count(self, messages: int) -> int:
        """Return a count of messages in the scale of this run."""
        return max(16, int(messages * self.scale))

    def topic(self) -> str:
        """Create a new topic."""
        self._topics += 1
        name = f"bench-{self._topics}"
        self._run(self._words("mk", name))
        return name

    def send(self, topic: str, count: int, **options: object) -> Found:
        """Send `count` messages and return what the load generator found."""
        return self._finish(self._spawn("send", topic, count, options))

    def recv(self, topic: str, count: int, **options: object) -> Found:
        """Receive until `count` messages came or nothing comes any more."""
        return self._finish(self._spawn("recv", topic, count, options))

    def pop(self, topic: str, count: int, **options: object) -> Found:
        """Pop and acknowledge until `count` messages came or nothing comes any more."""
        options |= {"broker_name": BROKER_NAME}
        return self._finish(self._spawn("pop", topic, count, options))

    def resend(self, level: int, delay_ms: int, count: int) -> Found:
        """Read `count` messages that wait in a level, and send each again as a timer."""
        options: dict[str, object] = {"level": level, "level_delay": delay_ms}
        return self._finish(self._spawn("resend", "-", count, options))

    def receiving(
        self, topic: str, count: int, **options: object
    ) -> AbstractContextManager[Meanwhile]:
        """Receive in the background; what the block gets waits for the result when called."""
        return self._meanwhile(self._spawn("recv", topic, count, options))

    def sending(
        self, topic: str, count: int, **options: object
    ) -> AbstractContextManager[Meanwhile]:
        """Send in the background, as `receiving` receives."""
        return self._meanwhile(self._spawn("send", topic, count, options))

    @contextmanager
    def _meanwhile(self, process: subprocess.Popen[str]) -> Iterator[Meanwhile]:
        try:
            yield Meanwhile(process, self._finish)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def warm_up(self) -> None:
        """Let a compiler at run time see every kind of work before it is measured."""
        self._warm({})
        self._warm({"level": 1})

    def warm_up_timers(self) -> float:
        """The same for timers, where the first ones are not what is measured; return sends/s."""
        return self._warm({"delay": WARM_DELAY_MS})

    def _warm(self, options: dict[str, int]) -> float:
        count, topic = self.count(WARM_MESSAGES), self.topic()
        sent = self.send(topic, count, **options)
        self.recv(topic, count)
        return float(sent["per_second"])

    def delivered(self, topic: str) -> int:
        """Return how many messages the queues of a topic have."""
        queues = range(QUEUE_COUNT)
        return sum(max_offset(self.server.broker_port, topic, queue) for queue in queues)

    @contextmanager
    def cpu(self) -> Iterator[list[float]]:
        """Measure the broker's processor seconds of the block, appended at its end."""
        found: list[float] = []
        before = self.server.broker.cpu_seconds()
        yield found
        found.append(self.server.broker.cpu_seconds() - before)

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
        if self.who is not None:
            words += ["-access-key", self.who.access_key, "-secret-key", self.who.secret]
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
        found: Found = json.loads(out)
        return found


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """The load generator at work in the background; call it to wait for what it found."""

    process: subprocess.Popen[str]
    finish: Callable[[subprocess.Popen[str]], Found]

    def __call__(self) -> Found:
        return self.finish(self.process)

    def stop(self) -> Found:
        """Interrupt it; return what it found."""
        self.process.send_signal(signal.SIGINT)
        return self()


def level_of_at_least(seconds: float) -> tuple[int, int]:
    """Return the first level with such a delay, and its delay in ms."""
    for index, delay_s in enumerate(LEVELS_S):
        if delay_s >= seconds:
            return index + 1, delay_s * 1_000
    raise ValueError(f"no level waits {seconds} s")


def delivery_faults(received: Found, sent: Found) -> list[Metric]:
    """Return the counts that must be 0: accepted messages lost, duplicated, early or damaged."""
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
