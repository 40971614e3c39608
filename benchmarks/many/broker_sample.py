"""Samples of a broker's process and of its metrics."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from benchmarks.watch import written_bytes
from tests.support.child_process import Child

LATENESS = "duemq_level_lateness"
HISTOGRAMS = ("duemq_gc_pause", "duemq_gc_full_pause", "duemq_loop_delay", LATENESS)
SCRAPE_S_MAX = 60
SCRAPE_PAUSE_S = 15  # as Prometheus waits
LONGEST_S = 60.0  # longer than the last bound
Sample = dict[str, Any]


def sample(process: Child, metrics_port: int) -> Sample:
    """Return memory, descriptors, threads, processor time and pauses of a broker."""
    sizes = process.memory_bytes()
    root = Path(f"/proc/{process.pid}")
    figures: Sample = {
        "resident_mb": sizes["rss"] / 1e6,
        "anonymous_mb": sizes["anonymous"] / 1e6,
        "huge_mb": huge_bytes(process.pid) / 1e6,
        "descriptors": sum(1 for _ in (root / "fd").iterdir()),
        "threads": sum(1 for _ in (root / "task").iterdir()),
        "cpu_s": process.cpu_seconds(),
        "written_mb": written_bytes(process.pid) / 1e6,
    }
    start = time.monotonic()  # a scrape of a busy broker can take as long as the window
    text = _metrics(metrics_port) if metrics_port else ""
    return figures | {
        "scrape_s": time.monotonic() - start,
        "scrape_bytes": len(text),
        "histograms": {name: buckets(text, f"{name}_seconds") for name in HISTOGRAMS},
    }


def huge_bytes(pid: int) -> int:
    """Return the anonymous memory of a process in huge pages; 0 where Linux does not count it."""
    totals = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) << 10 for size in re.findall(r"^AnonHugePages:\s+(\d+) kB", totals, re.M))


def _metrics(port: int) -> str:
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_S_MAX) as response:
                text: str = response.read().decode()
            return text
        except HTTPError as error:  # the event loop did not read the metrics within its limit
            print(f"the scrape failed: {error}", file=sys.stderr, flush=True)
            time.sleep(SCRAPE_PAUSE_S)


def buckets(text: str, name: str) -> dict[str, float]:
    """Return the cumulated counts of a histogram by upper bound, and its sum as `sum`.

    Series with other labels are added.
    """
    counts: dict[str, float] = {}
    bucket = rf'^{name}_bucket{{(?:.*,)?le="([^"]+)".*}} (\S+)$'
    for bound, value in re.findall(bucket, text, re.M):
        counts[bound] = counts.get(bound, 0.0) + float(value)
    return counts | {"sum": sum(map(float, re.findall(rf"^{name}_sum\S* (\S+)$", text, re.M)))}


def quantile_s(before: dict[str, float], after: dict[str, float], share: float = 1.0) -> float:
    """Return the bound below which a share of the durations between two samples are, in s.

    0: there were none.
    """
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after if bound != "sum"}
    if not counts or not counts["+Inf"]:
        return 0.0
    least = share * counts["+Inf"]
    bound = next(bound for bound, count in counts.items() if count >= least)
    return LONGEST_S if bound == "+Inf" else float(bound)
