"""Audits with many findings: `python -m benchmarks.many_findings 1000000 /data/bench`, JSON.

    late      each message of a store was delivered an hour late
    unknown   a producer's table has as many messages that the store of ten thousand does not have

With each engine. Each audit is a process; its memory is that of all processes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from benchmarks.fill import HOUR_MS, Filler
from benchmarks.loads.reconciliation import fill, run_child
from benchmarks.loads.timer_engine import Engine
from benchmarks.machine import describe
from spark_reconciliation.local.choice import LOCAL_ENGINE, SPARK_ENGINE
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter

FEW = 10_000
TOPICS = ("bench0",) * 9 + ("bench1",)
PIECE = 500_000
STEP_MS = 100
SPAN_MS = 10_000


def main(count: int, folder: Path) -> None:
    """Print the results for a number of findings."""
    late, few, table = folder / "late", folder / "few", folder / "sent.parquet"
    fill_late(late, count)
    fill(few, FEW)
    write_unknown(table, count)
    results = {}
    for engine in (LOCAL_ENGINE, SPARK_ENGINE):
        results[f"late, {engine}"] = _audit(folder, engine, [str(late)])
        compared = [str(few), "--sent", str(table)]
        results[f"unknown, {engine}"] = _audit(folder, engine, compared)
    print(json.dumps({"machine": describe(), "findings": count} | results, indent=2))


def fill_late(root: Path, count: int, topics: tuple[str, ...] = TOPICS) -> None:
    """Fill a store with timers, by default nine of ten in one topic; deliver them an hour late."""
    with Engine(root) as engine:
        engine.filler = Filler(engine.timers, topics)
        due_ms = engine.clock.now_ms() + 2_000
        while engine.filler.count < count:
            some = min(PIECE, count - engine.filler.count)
            engine.filler.fill(some, lambda n: due_ms + n % SPAN_MS)
            engine.work()
        assert asyncio.run(CheckpointWriter(engine.timers).persist(last=True))
    with Engine(root, due_ms + HOUR_MS) as engine:
        engine.filler = Filler(engine.timers, topics)  # the topics exist
        while engine.timers.stats.delivered < count:
            engine.clock.advance(STEP_MS)
            engine.work()
        assert asyncio.run(CheckpointWriter(engine.timers).persist(last=True))


def write_unknown(path: Path, count: int) -> None:
    """Write a producer's table of messages that no store has."""
    ids = [f"{number:032X}" for number in range(count)]
    columns = {"id": ids, "topic": ["bench0"] * count, "time": [1 << 40] * count}
    parquet.write_table(pa.table(columns), path)


def _audit(folder: Path, engine: str, words: Sequence[str]) -> dict[str, object]:
    """Return wall time, peak of anonymous memory, and the numbers of outcomes."""
    command = ["reconcile", "run", *words, "--engine", engine, "--ledger", "none", "--json"]
    seconds, peak_mb, text = run_child([sys.executable, "-m", "duemq", *command], folder)
    summary = json.loads(text)
    outcomes = [proof["outcomes"] for proof in summary["outside"]]
    facts = {"wall_s": round(seconds, 1), "anonymous_mb": round(peak_mb)}
    return facts | {"verdicts": summary["verdicts"], "outcomes": outcomes}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
