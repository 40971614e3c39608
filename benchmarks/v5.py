"""Benchmarks of RocketMQ 5 clients, and generator of docs/reference/v5-figures.md.

python -m benchmarks.v5                  run all loads (20 minutes), write the page
python -m benchmarks.v5 --scale 0.01     quick functional check
python -m benchmarks.v5 --fill-only      write the page from the newest figures
"""

from __future__ import annotations

import sys

from benchmarks.comparison import REFERENCE, ComparisonPage
from benchmarks.page import Goal

LOADS = ("v5-send", "v5-receive", "v5-lateness", "pop", "pop-visible", "sql-filter")
GOALS = (
    Goal(
        "gRPC sends with a delivery timestamp, Java client, 64 in flight, to Apache's",
        "v5-send",
        ("speed",),
        "times",
        1,
        2,
        more=True,
        to_apache=True,
        any_size=True,
    ),
    Goal(
        "gRPC receives of 32 and acknowledgements, Java client, to Apache's",
        "v5-receive",
        ("speed",),
        "times",
        1,
        2,
        more=True,
        to_apache=True,
        any_size=True,
    ),
    Goal(
        "lateness p99 at the client, sent by gRPC, 200/s",
        "v5-lateness",
        ("lateness, p99",),
        "ms",
        15,
        8,
        any_size=True,
    ),
    Goal(
        "remoting POP and acknowledgement, to Apache's",
        "pop",
        ("popped, acked",),
        "times",
        2,
        4,
        more=True,
        to_apache=True,
        any_size=True,
    ),
    Goal(
        "5,000 messages visible again at the same time, p50",
        "pop-visible",
        ("visible again, p50",),
        "ms late",
        100,
        100,
        any_size=True,
    ),
    Goal(
        "the same, last message",
        "pop-visible",
        ("visible again, max",),
        "ms late",
        100,
        100,
        any_size=True,
    ),
    Goal(
        "SQL92 filter over a queue of 1 M messages that 1 % pass, to Apache's",
        "sql-filter",
        ("filtered",),
        "times",
        1,
        10,
        more=True,
        to_apache=True,
        any_size=True,
    ),
)
INTRODUCTION = """# Benchmarks of RocketMQ 5 clients

Speed and punctuality for [RocketMQ 5 clients](../how-to/v5-clients.md) and POP. Load generator,
broker and, for Apache, its proxy share the cores of one machine, and all connections are on
loopback. The load generator is Apache's own gRPC client for Java; POP and SQL92 filters are
measured on the remoting port.

`python -m benchmarks.v5` runs all measurements in twenty minutes and writes this page.
"""
PAGE = ComparisonPage(REFERENCE / "v5-figures.md", LOADS, GOALS, INTRODUCTION)

if __name__ == "__main__":
    raise SystemExit(PAGE.main("benchmarks.v5", sys.argv[1:]))
