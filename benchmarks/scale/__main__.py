"""Measurement of one broker with up to 10^8 pending timers.

    python -m benchmarks.scale all --pending 1000000          every phase, then the report
    python -m benchmarks.scale fill --pending 100000000       fill, or continue to fill, the store
    python -m benchmarks.scale trickle spike                  some phases on the filled store
    python -m benchmarks.scale report page                    save the figures, write the page

The store stays in --root, and each phase can be run alone and again. 10^8 pending timers need 45 GB
of disk. Times are too long while other programs run; each run says how many cores these used.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import machine
from benchmarks.bench import Metric
from benchmarks.page import number
from benchmarks.report import RESULTS
from benchmarks.scale.figures_page import write
from benchmarks.scale.filling import fill
from benchmarks.scale.phases import PHASES
from benchmarks.scale.results import save
from benchmarks.scale.scale_store import ScaleStore

SMALL = 100_000


def main(words: list[str]) -> int:
    """Run phases in the given order."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    names = ("all", "fill", *PHASES, "report", "page")
    parser.add_argument("phases", nargs="+", choices=names)
    parser.add_argument("--pending", type=int, default=SMALL, help="pending timers, for fill")
    parser.add_argument("--root", type=Path, required=True, help="directory of store and figures")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    args = parser.parse_args(words)
    scale_store = ScaleStore(args.root)
    chosen = names[1:-1] if "all" in args.phases else args.phases
    for name in chosen:
        if name == "report":
            print(f"saved: {save(scale_store.state, args.out)}")
            continue
        if name == "page":
            write()
            continue
        print(f"{name} ...", flush=True)
        with machine.shared_with_others() as shared:
            metrics = (
                fill(scale_store, args.pending) if name == "fill" else PHASES[name](scale_store)
            )
        scale_store.record(name, metrics, shared.as_text())
        show(metrics, shared)
    return 0


def show(metrics: list[Metric], shared: machine.Shared) -> None:
    """Print the figures of a phase."""
    for metric in metrics:
        print(f"  {metric.name:42} {number(metric.value):>12} {metric.unit}")
    others = f"{shared.others:.2f}, stolen {shared.stolen:.2f}"
    print(f"  {'cores of other programs':42} {others:>12}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
