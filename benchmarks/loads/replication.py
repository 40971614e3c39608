"""Loads: effect of a replica on its master's clients, and copy rate of replicas."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event

from benchmarks.bench import Bench, Found, Load, Metric, delivery_faults
from benchmarks.loads.timers import trickled
from benchmarks.replicas import SYNC_KEYS, broker_like, log_end, replica_of, wait_copied
from tests.interop.replicas import wait_code
from tests.support.remoting_requests import SUCCESS
from tests.support.server import Server
from tests.support.wait_until import Stopwatch, until

MESSAGES = 400_000
WIDE = {"conns": 4, "depth": 64}
ROUNDS = 2  # alternately without and with a replica
STEADY_PER_S = 5_000
STEADY_S = 10
COPY_BYTES = 1_200_000_000
COPY_S = 300.0
RECORD_EXTRA_BYTES = 200  # of a record without its body
LARGE, SMALL = 1_024, 100
DISK_PIECE_BYTES = 1 << 20
POLL_S = 0.002
TRICKLE_S = 40


@contextmanager
def replicated(bench: Bench) -> Iterator[Server]:
    """Run a replica that has copied the whole log of the broker; keep its store at the end."""
    server = bench.server
    with replica_of(server, server.home / "replica", server.keys) as replica:
        wait_code(server, SUCCESS)  # a SYNC_MASTER accepts sends once a replica is in sync
        wait_copied(server, replica)
        yield replica


def ingest_async(bench: Bench) -> list[Metric]:
    """Send alternately without and with an asynchronous replica."""
    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        alone, alone_us, _ = _ingest(bench, None)
        with replicated(bench) as replica:
            copied, master_us, replica_us = _ingest(bench, replica)
        for name, value in (
            ("accepted alone", alone),
            ("accepted with replica", copied),
            ("master cpu alone", alone_us),
            ("master cpu with replica", master_us),
            ("replica cpu", replica_us),
        ):
            rates.setdefault(name, []).append(value)
    middle = {name: median(values) for name, values in rates.items()}
    return [
        Metric(
            name="with replica / alone",
            unit="ratio",
            better="more",
            value=middle["accepted with replica"] / middle["accepted alone"],
        ),
        *(
            Metric(name=name, value=value, unit="us/msg", better="less")
            if "cpu" in name
            else Metric(name=name, value=value, unit="msg/s", better="more")
            for name, value in middle.items()
        ),
    ]


def ingest_sync(bench: Bench) -> list[Metric]:
    """Send to a SYNC_MASTER with one replica."""
    with replicated(bench) as replica:
        bench.warm_up()
        rate, master_us, replica_us = _ingest(bench, replica)
    return [
        Metric(name="accepted", value=rate, unit="msg/s", better="more"),
        Metric(name="master cpu", value=master_us, unit="us/msg", better="less"),
        Metric(name="replica cpu", value=replica_us, unit="us/msg", better="less"),
    ]


def _ingest(bench: Bench, replica: Server | None) -> tuple[float, float, float]:
    """Send; return messages/s, and processor time per message of master and replica, in us."""
    count, topic = bench.count(MESSAGES), bench.topic()
    before = replica.broker.cpu_seconds() if replica else 0.0
    with bench.cpu() as cpu_s:
        sent = bench.send(topic, count, **WIDE)
        if replica:
            wait_copied(bench.server, replica)
    if sent["rejected"]:
        raise RuntimeError(f"{sent['rejected']} sends were rejected: {sent['first_rejection']}")
    copied_s = replica.broker.cpu_seconds() - before if replica else 0.0
    return sent["per_second"], cpu_s[0] / count * 1e6, copied_s / count * 1e6


def latency(bench: Bench) -> list[Metric]:
    """Send at a fixed rate, alternately to a SYNC_MASTER with a replica and to a single broker."""
    keys = {key: value for key, value in bench.server.keys.items() if key not in SYNC_KEYS}
    with replicated(bench), broker_like(bench.server, bench.server.home / "alone", keys) as other:
        alone = replace(bench, server=other)
        for each in (alone, bench):
            each.warm_up()
        reports = [(_steady(alone), _steady(bench)) for _ in range(ROUNDS)]
    metrics = []
    for quantile in ("p50", "p99"):
        plain, sync = (median(run[i]["ack_ms"][quantile] for run in reports) for i in (0, 1))
        values = {"alone": plain, "SYNC_MASTER": sync, "added": sync - plain}
        metrics += [
            Metric(name=f"send {quantile}, {name}", value=value, unit="ms", better="less")
            for name, value in values.items()
        ]
    return metrics


def _steady(bench: Bench) -> Found:
    seconds = max(1.0, STEADY_S * bench.scale)
    return bench.send(bench.topic(), int(STEADY_PER_S * seconds), rate=STEADY_PER_S)


def catch_up(bench: Bench, *, body_bytes: int) -> list[Metric]:
    """Start an empty replica of a master with a long log."""
    count = bench.count(COPY_BYTES // (body_bytes + RECORD_EXTRA_BYTES))
    bench.send(bench.topic(), count, size=body_bytes, **WIDE)
    server, end = bench.server, log_end(bench.server)
    disk = disk_bytes_per_s(server.home / "disk", end)
    replica = replica_of(server, server.home / "replica", server.keys)
    with bench.cpu() as master_s, _first_bytes(replica.store_dir / "commitlog") as begun, replica:
        until(lambda: log_end(replica) >= end, seconds=COPY_S, what="the log copied", poll_s=0.01)
        rate = end / begun[0].seconds
        replica_s = replica.broker.cpu_seconds()
    return [
        Metric(name="copied", value=rate / 1e6, unit="MB/s", better="more"),
        Metric(name="disk's own write", value=disk / 1e6, unit="MB/s", better="more"),
        Metric(name="copied / disk", value=rate / disk, unit="ratio", better="more"),
        Metric(name="log", value=end / 1e6, unit="MB", better="more"),
        Metric(name="master cpu", value=master_s[0] / end * 1e9, unit="s/GB", better="less"),
        Metric(name="replica cpu", value=replica_s / end * 1e9, unit="s/GB", better="less"),
    ]


@contextmanager
def _first_bytes(directory: Path) -> Iterator[list[Stopwatch]]:
    """Yield a list that gets a stopwatch, started when the first bytes of a log are written."""
    watches, ended = [Stopwatch()], Event()

    def look() -> None:
        while not ended.is_set():
            watch = Stopwatch()
            if any(path.stat().st_blocks for path in directory.glob("*")):
                return
            watches[0] = watch
            ended.wait(POLL_S)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield watches
        finally:
            ended.set()
            looking.result()


def disk_bytes_per_s(path: Path, size: int) -> float:
    """Write and sync a file; return the rate in bytes/s."""
    block, watch = os.urandom(DISK_PIECE_BYTES), Stopwatch()
    with path.open("wb", buffering=0) as file:
        for _ in range(max(size // DISK_PIECE_BYTES, 1)):
            file.write(block)
        os.fdatasync(file.fileno())
    seconds = watch.seconds
    path.unlink()
    return max(size, DISK_PIECE_BYTES) / seconds


def trickle(bench: Bench) -> list[Metric]:
    """Measure the lateness of timers at a low rate, on a SYNC_MASTER with a replica."""
    with replicated(bench):
        bench.warm_up()
        received, sent = trickled(bench, TRICKLE_S)
    late = received["late_at_store_ms"]
    return [
        *(
            Metric(name=f"late {q}", value=late[q], unit="ms", better="less")
            for q in ("p50", "p99", "max")
        ),
        *delivery_faults(received, sent),
    ]


LOADS = [
    Load(
        name="replica-async",
        what="ingest 4 x 64 without and with a replica",
        run=ingest_async,
        default=False,
        ours_only=True,
        replication=True,
    ),
    Load(
        name="replica-sync",
        what="ingest 4 x 64, SYNC_MASTER with a replica",
        run=ingest_sync,
        default=False,
        replication=True,
        keys=SYNC_KEYS,
    ),
    Load(
        name="replica-latency",
        what="sends at 5 k/s, SYNC_MASTER and a broker alone",
        run=latency,
        default=False,
        ours_only=True,
        replication=True,
        keys=SYNC_KEYS,
    ),
    Load(
        name="replica-catch-up",
        what="an empty replica copies 1.2 GB, bodies of 1 KiB",
        run=partial(catch_up, body_bytes=LARGE),
        default=False,
        ours_only=True,
        replication=True,
    ),
    Load(
        name="replica-catch-up-small",
        what="the same, bodies of 100 bytes",
        run=partial(catch_up, body_bytes=SMALL),
        default=False,
        ours_only=True,
        replication=True,
    ),
    Load(
        name="replica-trickle",
        what="timers at 500/s, SYNC_MASTER with a replica",
        run=trickle,
        default=False,
        ours_only=True,
        replication=True,
        keys=SYNC_KEYS,
    ),
]
