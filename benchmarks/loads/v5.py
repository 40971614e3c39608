"""Loads: rates and lateness of Apache's gRPC client for Java.

DueMQ serves the client on its own port; Apache's broker serves it through Apache's proxy.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import Load, Metric
from tests.interop.apache import Apache
from tests.interop.apache_proxy import ApacheProxy, typed_topic
from tests.interop.programs import v5_load_command
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import LOOPBACK
from tests.support.server import Server

SOURCE = Path(__file__).parents[1] / "v5load"
MESSAGES = 100_000
IN_FLIGHT, LANES = 64, 4
DELAY_MS, LATE_DELAY_MS = 600_000, 3_000
RATE, LATE_MESSAGES = 200, 6_000
LOAD_S_MAX = 900
KEYS = {"timerWheelEnable": "true"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Broker and endpoint of its gRPC clients."""

    server: Server
    address: str
    proxy: ApacheProxy | None

    def cpu_seconds(self) -> float:
        """Return the processor time of all processes that serve the clients, in seconds."""
        spent = self.server.broker.cpu_seconds()
        return spent + (self.proxy.cpu_seconds() if self.proxy is not None else 0.0)

    def run(self, mode: str, topic: str, count: int, **options: object) -> dict[str, Any]:
        """Run the load generator and return its report."""
        words = [*v5_load_command(SOURCE), mode, "--endpoint", self.address, "--topic", topic]
        words += ["--n", str(count), "--group", f"g-{topic}"]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LOAD_S_MAX, check=False
        )
        if done.returncode or not done.stdout.strip():
            raise RuntimeError(f"the load generator failed: {done.stderr[-2_000:]}")
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report


@contextmanager
def endpoint(home: Path, *, is_apache: bool) -> Iterator[Endpoint]:
    """Run a broker with a gRPC endpoint in an empty folder."""
    if not is_apache:
        ours = DueMQ(home, keys=dict(KEYS))
        ours.keys["grpcServerPort"] = str(ours.grpc_port)
        with ours:
            yield Endpoint(ours, f"{LOOPBACK}:{ours.grpc_port}", None)
        return
    with (
        Apache("5.3.3", home, keys=dict(KEYS), heap="2g", fixed_heap=True) as server,
        ApacheProxy("5.3.3", home, server.namesrv_address) as proxy,
    ):
        yield Endpoint(server, proxy.address, proxy)


def send(home: Path, scale: float, *, is_apache: bool) -> list[Metric]:
    """Send messages with a delivery timestamp, 64 at a time."""
    count = max(16, int(MESSAGES * scale))
    with endpoint(home, is_apache=is_apache) as where:
        typed_topic(where.server, "V5Send", "DELAY")
        before_s = where.cpu_seconds()
        report = where.run(
            "send", "V5Send", count, warm=count // 2, in_flight=IN_FLIGHT, delay_ms=DELAY_MS
        )
        cpu_us = (where.cpu_seconds() - before_s) / (count + count // 2) * 1e6
    return [*_speed(report, cpu_us), *_counts(report, "failed")]


def receive(home: Path, scale: float, *, is_apache: bool) -> list[Metric]:
    """Receive with four concurrent calls of up to 32 messages; acknowledge each message."""
    count = max(16, int(MESSAGES * scale))
    with endpoint(home, is_apache=is_apache) as where:
        for topic in ("V5Warm", "V5Receive"):
            typed_topic(where.server, topic, "NORMAL")
            where.run("send", topic, count, in_flight=IN_FLIGHT)
        where.run("receive", "V5Warm", count, lanes=LANES)
        before_s = where.cpu_seconds()
        report = where.run("receive", "V5Receive", count, lanes=LANES)
        cpu_us = (where.cpu_seconds() - before_s) / count * 1e6
    return [*_speed(report, cpu_us), *_counts(report, "failed", "duplicates")]


def lateness(home: Path, scale: float, *, is_apache: bool) -> list[Metric]:
    """Send 200 delayed messages per second; measure their lateness at the client."""
    count = max(200, int(LATE_MESSAGES * scale))
    with endpoint(home, is_apache=is_apache) as where:
        typed_topic(where.server, "V5Late", "DELAY")
        report = where.run(
            "late", "V5Late", count, warm=count // 3, rate=RATE, lanes=LANES, delay_ms=LATE_DELAY_MS
        )
    return [
        *(
            Metric(name=f"lateness, {name}", value=report[name], unit="ms", better="less")
            for name in ("p50", "p99", "max")
        ),
        *_counts(report, "lost", "early", "duplicates", "failed"),
    ]


def _speed(report: dict[str, Any], cpu_us: float) -> list[Metric]:
    return [
        Metric(name="speed", value=report["per_second"], unit="msg/s", better="more"),
        Metric(name="broker and proxy", value=cpu_us, unit="us/msg", better="less"),
    ]


def _counts(report: dict[str, Any], *names: str) -> list[Metric]:
    return [Metric(name=n, value=report[n], unit="messages", better="less") for n in names]


LOADS = [
    Load(
        name="v5-send",
        what="gRPC client for Java: 100 k delayed messages, 64 in flight",
        group=send,
        default=False,
    ),
    Load(
        name="v5-receive",
        what="gRPC client for Java: 100 k messages received 32 at a time and acknowledged",
        group=receive,
        default=False,
    ),
    Load(
        name="v5-lateness",
        what="gRPC client for Java: 200 delayed messages a second, lateness at the client",
        group=lateness,
        default=False,
    ),
]
