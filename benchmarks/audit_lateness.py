"""Lateness of deliveries with and without a running audit.

    python -m benchmarks.audit_lateness [--scale 0.2] [--ballast 200000]

One broker delivers 500 timers per second. Audits of its store run one after the other with idle
priority, as `reconcileCron` starts them. The program measures without, with, and again without
audits, which shows whether the machine became busier. It writes docs/figures/audit-lateness.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.bench import WIRELOAD, Bench
from benchmarks.loads.timers import TRICKLE_PER_S, trickled
from benchmarks.run import OURS, SERVERS, parse
from spark_reconciliation.config import ReconcileConfig
from spark_reconciliation.jobs.child_process import command_of, run
from tests.interop.programs import go_program

TARGET = Path(__file__).parents[1] / "docs" / "figures" / "audit-lateness.json"
SECONDS_MAX = 3_600.0


def main(words: list[str]) -> int:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.audit_lateness")
    parser.add_argument("--scale", type=float, default=0.5, help="share of a minute")
    parser.add_argument(
        "--ballast", type=int, default=200_000, help="messages in the store at the start"
    )
    parser.add_argument("--out", type=Path, default=TARGET)
    args = parser.parse_args(words)
    figures = measured(args.scale, args.ballast)
    args.out.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures["p99_ratio"]))
    return 0


def measured(scale: float, ballast: int) -> dict[str, Any]:
    """Return the lateness without audits, with audits, and without audits again."""
    about, wireload = machine.describe(), go_program(WIRELOAD)
    with (
        tempfile.TemporaryDirectory(prefix="audit-lateness-") as home,
        machine.shared_with_others() as shared,
    ):
        server = SERVERS[OURS](Path(home), parse([]))
        with server:
            bench = Bench(server, wireload, scale)
            bench.warm_up()
            bench.send(bench.topic(), ballast, conns=4)
            alone = late(bench)
            with audits(store_of(Path(home))) as exit_codes:
                loaded = late(bench)
            again = late(bench)
    about |= shared.as_text()
    quiet = max(alone["p99"], again["p99"], 1)
    return {
        "what": f"lateness at the store of timers sent at {TRICKLE_PER_S}/s, ms",
        "command": "python -m benchmarks.audit_lateness",
        "machine": about,
        "alone": alone,
        "loaded": loaded,
        "alone again": again,
        "audits": exit_codes,
        "p99_ratio": round(loaded["p99"] / quiet, 2),
    }


def late(bench: Bench) -> dict[str, float]:
    """Return the lateness of timers at a low rate, and counts of delivery errors."""
    received = trickled(bench)[0]
    times = {name: received["late_at_store_ms"][name] for name in ("p50", "p99", "p999")}
    return times | {name: received[name] for name in ("lost", "duplicates", "early")}


def store_of(home: Path) -> Path:
    """Return the store below a broker's home."""
    return next(path.parent for path in home.rglob("commitlog") if path.is_dir())


@contextmanager
def audits(store: Path) -> Iterator[list[int]]:
    """Run audits one after the other while the block is active; the last one is cancelled.

    Yields:
        List of the exit codes of completed audits.
    """
    exit_codes: list[int] = []
    loop = asyncio.new_event_loop()

    async def work() -> None:
        while True:
            command = command_of(ReconcileConfig(ledger_url="none"), str(store), "")
            exit_codes.append((await run(command, seconds_max=SECONDS_MAX)).exit_code)

    task = loop.create_task(work())

    def run_loop() -> None:
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            loop.close()

    thread = threading.Thread(target=run_loop, name="audits")
    thread.start()
    try:
        yield exit_codes
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
