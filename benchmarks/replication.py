"""Replication and failover benchmarks, and generator of docs/reference/replication-figures.md.

    python -m benchmarks.replication               run all loads (10 minutes), write the page
    python -m benchmarks.replication --scale 0.01  quick functional check
    python -m benchmarks.replication --fill-only   write the page from the newest figures

A test checks that the page is up to date.
"""

from __future__ import annotations

import sys

from benchmarks.comparison import REFERENCE, ComparisonPage
from benchmarks.loads import LOADS
from benchmarks.page import Goal

GOALS = (
    Goal(
        "ingest 4 x 64 with an asynchronous replica, to ingest without",
        "replica-async",
        ("with replica / alone",),
        "times",
        0.8,
        0.95,
        more=True,
        any_size=True,
    ),
    Goal(
        "ingest 4 x 64, SYNC_MASTER, to Apache's SYNC_MASTER",
        "replica-sync",
        ("accepted",),
        "times",
        2,
        4,
        more=True,
        to_apache=True,
    ),
    Goal(
        "added p99 of a SYNC_MASTER send, 5 k/s",
        "replica-latency",
        ("send p99, added",),
        "ms",
        3,
        1,
    ),
    Goal(
        "catch-up of an empty replica",
        "replica-catch-up",
        ("copied",),
        "MB/s",
        300,
        600,
        more=True,
    ),
    Goal(
        "`kill -9` of the master to the first accepted send",
        "failover",
        ("outage",),
        "s",
        5,
        3.5,
    ),
    Goal("the same with 2 M pending timers", "failover-2m", ("outage",), "s", 5, 3.5),
    Goal(
        "stored after the outage, of what fell due in it",
        "failover",
        ("due meanwhile, stored after the outage",),
        "ms",
        50,
        50,
    ),
    Goal(
        "lateness p99 of 500/s timers with a replica",
        "replica-trickle",
        ("late p99",),
        "ms",
        5,
        3,
    ),
)

PAGE = ComparisonPage(
    REFERENCE / "replication-figures.md",
    [name for name, load in LOADS.items() if load.replication],
    GOALS,
)

if __name__ == "__main__":
    raise SystemExit(PAGE.main("benchmarks.replication", sys.argv[1:]))
