"""Measurement: slopes of memory per topic, connection and group; then the load, sampled.

topics -> connections -> groups        memory before and after each
all clients, messages                  one sample for each report of `manyload`
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from shutil import rmtree
from signal import SIGINT
from typing import Any, Final

from benchmarks.bench import WIRELOAD
from benchmarks.many.broker_sample import LATENESS, Sample, quantile_s, sample
from benchmarks.many.clients import PREFIX, connections, create_singly, create_topics
from benchmarks.many.sizes import Sizes
from tests.interop.apache import PATIENT, Apache
from tests.interop.programs import go_program
from tests.support.child_process import Child, wait_for_child
from tests.support.duemq_server import DueMQ
from tests.support.free_ports import free_ports, listening
from tests.support.server import Server

OURS: Final = "duemq"
MANYLOAD: Final = Path(__file__).parents[1] / "manyload"
SHARED: Final = ("dial.go", "frame.go", "record.go", "sign.go", "stats.go", "tally.go")
SINGLE_TOPICS: Final = 100  # created by one request each
SLOPE_CLIENTS: Final = 1_000
METRICS_S_MAX: Final = 60.0  # the HTTP port opens after that of the clients
KEYS: Final = {
    "diskMaxUsedSpaceRatio": "75",  # retention removes the oldest files when the disk fills
    "fileReservedTime": "1",
}
QUANTILES: Final = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
Figures = dict[str, Any]


def measure(root: Path, sizes: Sizes, name: str = OURS) -> Figures:
    """Return all figures of a new broker."""
    with new_broker(root, name) as (server, metrics_port):
        slopes = measure_slopes(server, sizes)
        figures = measure_load(server, sizes, metrics_port)
    return {"sizes": asdict(sizes), "slopes": slopes} | figures


@contextmanager
def new_broker(root: Path, name: str = OURS) -> Iterator[tuple[Server, int]]:
    """Run a broker on a new store, which is removed at the end; yield it and its metrics port.

    Args:
        name: `duemq`, or `apache-VERSION`, whose metrics are not read (port 0).
    """
    home, store_dir, metrics_port = root / "broker", root / "store", 0
    server: Server
    if name == OURS:
        [metrics_port] = free_ports(1)
        keys = KEYS | {"metricsPromExporterPort": str(metrics_port)}
        server = DueMQ(home, store_dir=store_dir, keys=keys)
    else:
        version = name.removeprefix("apache-")
        server = Apache(version, home, store_dir=store_dir, keys=PATIENT, heap="4g")
    try:
        server.start()
        if metrics_port:
            is_open = partial(listening, metrics_port)
            wait_for_child(server.broker, is_open, seconds=METRICS_S_MAX, what="open metrics port")
        yield server, metrics_port
    finally:
        server.stop()
        rmtree(root, ignore_errors=True)


def measure_slopes(server: Server, sizes: Sizes) -> dict[str, float]:
    """Return times of creation, and memory per topic, connection and group in KB."""
    port, broker = server.broker_port, server.broker
    few = min(sizes.groups, SLOPE_CLIENTS)
    single_s = create_singly(port, min(SINGLE_TOPICS, sizes.topics))
    before = _anonymous_kb(broker)
    created_s = create_topics(port, sizes.topics)
    topics = _anonymous_kb(broker)
    with connections(port, few, groups=False):
        producers = _anonymous_kb(broker)
    idle = _anonymous_kb(broker)
    with connections(port, few, groups=True):
        groups = _anonymous_kb(broker)
    per_connection = (producers - topics) / few
    return {
        "one topic by its own request, ms": 1_000 * single_s / min(SINGLE_TOPICS, sizes.topics),
        "all topics by requests of 1,000, s": created_s,
        "memory per topic of 4 queues, KB": (topics - before) / sizes.topics,
        "memory per connection, KB": per_connection,
        "memory per group with one member and its retry topic, KB": max(groups - idle, 0) / few,
    }


def _anonymous_kb(broker: Child) -> float:
    return broker.memory_bytes()["anonymous"] / 1_000


def measure_load(
    server: Server,
    sizes: Sizes,
    metrics_port: int,
    is_enough: Callable[[Figures], bool] = lambda row: False,
) -> Figures:
    """Run the clients; return a row per window, and the counts of all messages.

    Args:
        is_enough: Ends the sends after a window.
    """
    connected: Figures = {}
    rows: list[Figures] = []
    last = sample(server.broker, metrics_port)
    reports, ends = Reports(), False
    for report in reports.of_run(server.broker_port, sizes):
        current = sample(server.broker, metrics_port)
        if report["event"] == "connected":
            connected = report | {"broker": current}
        elif report["event"] == "window":
            rows.append(row(report, last, current))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
            if not ends and is_enough(rows[-1]):
                ends = True
                reports.end_sends()
        else:
            return {"connected": connected, "windows": rows, "final": report}
        last = current
    raise RuntimeError("manyload ended without its last report")


def row(report: Figures, before: Sample, after: Sample) -> Figures:
    """Return one report of the load, with what the broker used meanwhile."""
    seconds = (report["end_ms"] - report["start_ms"]) / 1_000
    histograms = {
        name: quantile_s(before["histograms"][name], values) * 1_000
        for name, values in after["histograms"].items()
    }
    late = before["histograms"][LATENESS], after["histograms"][LATENESS]
    gc_s = sum(
        after["histograms"][name]["sum"] - before["histograms"][name]["sum"]
        for name in ("duemq_gc_pause", "duemq_gc_full_pause")
    )
    memory = ("resident_mb", "anonymous_mb", "huge_mb")
    names = (*memory, "descriptors", "threads", "scrape_s", "scrape_bytes")
    return report | {
        "seconds": seconds,
        "broker_cores": (after["cpu_s"] - before["cpu_s"]) / seconds,
        "load_cores": report["cpu_seconds"] / seconds,
        "written_mb": after["written_mb"] - before["written_mb"],
        "gc_share": gc_s / seconds,
        "longest_gc_ms": histograms["duemq_gc_pause"],
        "longest_full_gc_ms": histograms["duemq_gc_full_pause"],
        "longest_turn_ms": histograms["duemq_loop_delay"],
        "late_after_due_ms": {
            name: quantile_s(*late, share) * 1_000 for name, share in QUANTILES.items()
        },
        **{name: after[name] for name in names},
    }


def _line(figures: Figures) -> str:
    late, seconds = figures["late_at_store_ms"], figures["seconds"]
    return (
        f"{figures['accepted'] / seconds:,.0f}/s in, {figures['received'] / seconds:,.0f}/s out, "
        f"late p50 {late['p50']:g} p99 {late['p99']:g} max {late['max']:g} ms, after due p99 "
        f"{figures['late_after_due_ms']['p99']:g} ms, broker "
        f"{figures['broker_cores']:.2f} cores, {figures['anonymous_mb']:.0f} MB, load "
        f"{figures['load_cores']:.2f} cores, gc {100 * figures['gc_share']:.1f} %"
    )


class Reports:
    """Reports of a run of `manyload`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def end_sends(self) -> None:
        """End the sends; the run ends when the last message is received."""
        assert self._process is not None
        self._process.send_signal(SIGINT)

    def of_run(self, port: int, sizes: Sizes) -> Iterator[Figures]:
        """Run the program; yield its reports as they are printed."""
        program = go_program(MANYLOAD, shared=[WIRELOAD / name for name in SHARED])
        options = {
            "addr": f"127.0.0.1:{port}",
            "prefix": PREFIX,
            "topics": sizes.topics,
            "groups": sizes.groups,
            "conns": sizes.connections,
            "producers": sizes.producers,
            "rate": sizes.rate,
            "rates": ",".join(map(str, sizes.rates)),
            "skew": sizes.skew,
            "seconds": sizes.seconds,
            "window": sizes.window_s,
            "together": sizes.together,
            "levels": sizes.levels,
        }
        words = [str(program), *(f"-{key}={value}" for key, value in options.items())]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            self._process = process
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    yield json.loads(line)
            finally:
                if process.poll() is None:
                    process.kill()
        if process.returncode:
            raise RuntimeError(f"manyload ended with {process.returncode}")
