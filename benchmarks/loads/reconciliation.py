"""Loads: scans of a store, the audit command, and alternatives to the command.

The load fills a store with delivered timers through the library. It then runs each of the
following in a separate process, and measures time and peak memory:

    scan      scan of all records in two processes, in records per second
    command   `duemq reconcile run STORE`, from start to end
    script    plain Python program that reads and compares record by record
    pandas    pandas join of the columns that the audit reads

    python -m benchmarks.run --only audit-first,audit,audit-1m,audit-40m
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.bench import Load, Metric
from benchmarks.fill import catch_up_index
from benchmarks.loads.timer_engine import Engine
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter

MESSAGES = 10_000_000
PIECE = 500_000  # put, then delivered
SPAN_MS, STEP_MS = 5_000, 100
SIZES = {"1 M": 0.1, "40 M": 4.0}  # of MESSAGES; shows whether the time is linear
ALTERNATIVES = {
    "1 M": ("script", "pandas")
}  # with 10 M a script takes 10 GB and a quarter of an hour
SCANS = ("head", "audit", "all")
SAMPLE_S = 0.2


def fill(root: Path, count: int, start_ms: int | None = None) -> None:
    """Add `count` delivered timers to a store.

    Args:
        start_ms: Time of the fake clock; None: its default.
    """
    random = np.random.default_rng(1)
    with Engine(root, start_ms) as engine:
        while engine.filler.count < count:
            some = min(PIECE, count - engine.filler.count)
            start_ms = engine.clock.now_ms() + 2_000
            engine.filler.fill(
                some,
                lambda n, begin_ms=start_ms: begin_ms + random.integers(0, SPAN_MS, n.size),  # type: ignore[misc]
            )
            for _ in range((SPAN_MS + 2_500) // STEP_MS):
                engine.clock.advance(STEP_MS)
                engine.work()
        assert engine.timers.stats.delivered == count
        catch_up_index(engine.store)
        assert asyncio.run(CheckpointWriter(engine.timers).persist(last=True))


def run_child(words: list[str], home: Path) -> tuple[float, float, str]:
    """Run a program; return its seconds, the peak MB of it and its children, and its output."""
    begin = time.perf_counter()
    with (home / "out.txt").open("w+") as out, (home / "err.txt").open("w+") as err:
        child = subprocess.Popen(words, stdout=out, stderr=err, start_new_session=True)
        most = [0.0]
        watcher = threading.Thread(target=_watch, args=(child, most))
        watcher.start()
        code = child.wait()
        took = time.perf_counter() - begin
        watcher.join()
        out.seek(0)
        err.seek(0)
        if code not in (0, 1):
            raise RuntimeError(f"{words[-2:]} ended with {code}: {err.read()[-2_000:]}")
        return took, most[0], out.read()


def _watch(child: subprocess.Popen[bytes], most: list[float]) -> None:
    while child.poll() is None:
        most[0] = max(most[0], _session_mb(child.pid))
        time.sleep(SAMPLE_S)


def _session_mb(session: int) -> float:
    """Return the proportional set size of all processes of a session, in MB."""
    total = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if os.getsid(int(folder.name)) == session:
                text = (folder / "smaps_rollup").read_text()
                sizes = (
                    line.split()[1] for line in text.splitlines() if line.startswith("Pss_Anon")
                )
                total += sum(int(size) for size in sizes)
        except OSError:
            continue
    return total / 1024


def audit(
    folder: Path,
    scale: float,
    *,
    share: float = 1.0,
    scans: Sequence[str] = SCANS[1:2],
    ways: Sequence[str] = (),
) -> list[Metric]:
    """Measure scans, the command, and its alternatives."""
    count = max(1_000, int(MESSAGES * share * scale))
    store = folder / "store"
    fill(store, count)
    metrics: list[Metric] = []
    for name in scans:  # the first scan also compiles the kernels
        _, _, text = run_child([sys.executable, "-m", TOOL, "scan", name, str(store)], folder)
        rate = 2 * count / float(text)
        metrics.append(Metric(name=f"scan, {name}", value=rate, unit="msg/s", better="more"))
    command = [sys.executable, "-m", "duemq", "reconcile", "run", str(store), "--json"]
    took, most, text = run_child(command, folder)
    summary = json.loads(text)
    if summary["verdicts"] != {"ok": count}:
        raise RuntimeError(f"the audit reports {summary['verdicts']} of {count} messages")
    metrics += [
        Metric(name=f"command, {count:,}", value=took, unit="s", better="less"),
        Metric(name=f"command, {count:,}: memory", value=most, unit="MB", better="less"),
    ]
    for name in ways:
        try:
            took, most, _ = run_child([sys.executable, "-m", TOOL, name, str(store)], folder)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            continue
        metrics += [
            Metric(name=f"{name}, {count:,}", value=took, unit="s", better="less"),
            Metric(name=f"{name}, {count:,}: memory", value=most, unit="MB", better="less"),
        ]
    return metrics


def first(folder: Path, scale: float) -> list[Metric]:
    """Measure the command on a small store in the page cache."""
    store = folder / "store"
    fill(store, max(1_000, int(10_000 * scale)))
    command = [sys.executable, "-m", "duemq", "reconcile", "run", str(store), "--json"]
    metrics = []
    for name, value in (("before there is a class archive", "off"), ("", str(folder / "java"))):
        env = {**os.environ, "DUEMQ_CLASS_ARCHIVE": value}
        if value != "off":
            making = [sys.executable, "-m", "spark_reconciliation.spark.class_archive"]
            subprocess.run(making, env=env, check=True, capture_output=True)
        seconds = sorted(_first_output_s(command, env) for _ in range(3))
        for which, took in (("", seconds[0]), ("slowest of 3", seconds[-1])):
            title = ", ".join(filter(None, ("first result", name, which)))
            metrics.append(Metric(name=title, value=took, unit="s", better="less"))
    return metrics


def _first_output_s(words: list[str], env: dict[str, str]) -> float:
    """Return the seconds until a program's first output."""
    begin = time.perf_counter()
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        output = run.stdout.read(1)
        took = time.perf_counter() - begin
        run.stdout.read()
    if not output:
        raise RuntimeError(f"{words[-2:]} ended with {run.returncode} and printed nothing")
    return took


TOOL = "benchmarks.audit_alternatives"
make = partial(Load, default=False, ours_only=True)
LOADS = [
    make(
        name="audit",
        what="audit of 10 M timers put and delivered",
        alone=partial(audit, scans=SCANS),
    ),
    make(name="audit-first", what="the command's first result on a small store", alone=first),
    *(
        make(
            name=f"audit-{size.split()[0]}m",
            what=f"the command on {size} messages; the small ones without it, too",
            alone=partial(audit, share=share, ways=ALTERNATIVES.get(size, ())),
        )
        for size, share in SIZES.items()
    ),
]
