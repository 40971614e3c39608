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

HISTOGRAMS = ("duemq_gc_pause", "duemq_gc_full_pause", "duemq_loop_delay")
SCRAPE_S_MAX = 60
LONGEST_S = 60.0  # longer than the last bound
Sample = dict[str, Any]


def sample(process: Child, metrics_port: int) -> Sample:
    """Return memory, descriptors, threads, processor time and pauses of a broker."""
    sizes = process.memory_bytes()
    root = Path(f"/proc/{process.pid}")
    start = time.monotonic()
    text = _metrics(metrics_port) if metrics_port else ""
    return {
        "resident_mb": sizes["rss"] / 1e6,
        "anonymous_mb": sizes["anonymous"] / 1e6,
        "descriptors": sum(1 for _ in (root / "fd").iterdir()),
        "threads": sum(1 for _ in (root / "task").iterdir()),
        "cpu_s": process.cpu_seconds(),
        "written_mb": written_bytes(process.pid) / 1e6,
        "scrape_s": time.monotonic() - start,
        "scrape_bytes": len(text),
        "histograms": {name: buckets(text, f"{name}_seconds") for name in HISTOGRAMS},
    }


def _metrics(port: int) -> str:
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_S_MAX) as response:
                text: str = response.read().decode()
            return text
        except HTTPError as error:  # the event loop did not read the metrics within its limit
            print(f"the scrape failed: {error}", file=sys.stderr, flush=True)


def buckets(text: str, name: str) -> dict[str, float]:
    """Return the cumulated counts of a histogram by upper bound, and its sum as `sum`."""
    counts = {
        bound: float(value)
        for bound, value in re.findall(rf'^{name}_bucket{{le="(\S+)"}} (\S+)$', text, re.M)
    }
    total = re.search(rf"^{name}_sum (\S+)$", text, re.M)
    return counts | {"sum": float(total[1]) if total else 0.0}


def longest_s(before: dict[str, float], after: dict[str, float]) -> float:
    """Return the bound of the longest duration between two samples, in s; 0: there was none."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in after if bound != "sum"}
    if not counts or not counts["+Inf"]:
        return 0.0
    bound = next(bound for bound, count in counts.items() if count == counts["+Inf"])
    return LONGEST_S if bound == "+Inf" else float(bound)
