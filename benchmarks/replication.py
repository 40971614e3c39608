"""Measures replicas and failover, and writes docs/reference/replication-figures.md.

    python -m benchmarks.replication               all loads (10 minutes), then the page
    python -m benchmarks.replication --scale 0.01   a quick look whether everything works
    python -m benchmarks.replication --fill-only    the page again, from the newest figures

A test fills the page again and compares.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import page, run
from benchmarks.loads import LOADS
from benchmarks.page import Found, Goal, figures, number

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "replication-figures.md"
NAMES = tuple(name for name, load in LOADS.items() if load.replication)
GOALS = (
    Goal(
        "ingest 4 x 64 with an asynchronous replica, to ingest without", "replica-async",
        ("with replica / alone",), "times", 0.8, 0.95, more=True, any_size=True,
    ),
    Goal(
        "ingest 4 x 64, SYNC_MASTER, to Apache's SYNC_MASTER", "replica-sync", ("accepted",),
        "times", 2, 4, more=True, to_apache=True,
    ),
    Goal(
        "added p99 of a SYNC_MASTER send, 5 k/s", "replica-latency", ("send p99, added",), "ms",
        3, 1,
    ),
    Goal(
        "catch-up of an empty replica", "replica-catch-up", ("copied",), "MB/s", 300, 600,
        more=True,
    ),
    Goal(
        "`kill -9` of the master to the first accepted send", "failover", ("outage",), "s", 5, 3.5,
    ),
    Goal("the same with 2 M pending timers", "failover-2m", ("outage",), "s", 5, 3.5),
    Goal(
        "stored after the outage, of what fell due in it", "failover",
        ("due meanwhile, stored after the outage",), "ms", 50, 50,
    ),
    Goal(
        "lateness p99 of 500/s timers with a replica", "replica-trickle", ("late p99",), "ms", 5, 3,
    ),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Measure, unless skipped, and write the page; return 1 if a load failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.replication")
    parser.add_argument("--fill-only", action="store_true", help="take the newest figures")
    parser.add_argument("--scale", default="1.0", help="multiplies counts of messages")
    args = parser.parse_args(words)
    failed = 0 if args.fill_only else run.main(["--replication", "--scale", args.scale])
    PAGE.write_text(filled(PAGE.read_text(), page.newest(set(NAMES))))
    print(f"written: {PAGE}")
    return failed


def filled(text: str, name: str) -> str:
    """Return a page with the figures of a file in benchmarks/results between its marks."""
    found = page.read(name)
    parts = [page.about(name, found, NAMES), page.goals_table(found, GOALS), _beside(found)]
    return page.replaced(text, parts)


def _beside(found: Found) -> str:
    """Return a table of every figure, of Apache and of DueMQ."""
    rows = ["| load | figure | Apache 5.3.3 | DueMQ |", "|---|---|---|---|"]
    for load in NAMES:
        theirs, ours = (figures(found, load, server) for server in (run.APACHE, run.OURS))
        title = f"`{load}`"
        for name, (_, unit) in (theirs | ours).items():
            cells = [
                f"{number(known[name][0])} {unit}" if name in known else "-"
                for known in (theirs, ours)
            ]
            rows.append(f"| {title} | {name} | {' | '.join(cells)} |")
            title = ""
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
