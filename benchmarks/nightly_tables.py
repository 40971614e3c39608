"""Time of exports: `python -m benchmarks.nightly_tables 1000000 /data/bench`, JSON.

    first         the whole store, into new tables
    unchanged     no new records
    incremental   1 % more messages, put and delivered since

Each export is a process, as from cron. The store has twice as many records as messages.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.loads.reconciliation import fill
from benchmarks.machine import describe

SHARE = 100


def main(count: int, folder: Path) -> None:
    """Print the results for a number of messages."""
    store = folder / "store"
    fill(store, count)
    results = dict(_exports(store, folder / "tables", count))
    print(json.dumps({"machine": describe(), "messages": count} | results, indent=2))


def _exports(store: Path, tables: Path, count: int) -> Iterator[tuple[str, dict[str, float]]]:
    yield "first", _export(store, tables)
    yield "unchanged", _export(store, tables)
    fill(store, count // SHARE)
    yield "incremental", _export(store, tables)


def _export(store: Path, tables: Path) -> dict[str, float]:
    """Return wall and processor time of an export, in seconds."""
    words = ["reconcile", "export", str(store), "--to", str(tables), "--json"]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "duemq", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(time.perf_counter() - begin, 1), "cpu_s": round(cpu_s, 1)}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
