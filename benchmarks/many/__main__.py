"""Measurement of one broker with many topics, groups and connections at once.

    python -m benchmarks.many --seconds 3600 --search --page     the sizes of the page, and the page
    python -m benchmarks.many --seconds 0 --search               only the highest rates
    python -m benchmarks.many --seconds 20 --topics 100 --groups 20 --connections 50 --rate 1000

The broker gets its topics by the admin request of `mqadmin updateTopicList`. Then `manyload` runs
the clients; memory, descriptors, processor time and pauses of the broker are read once a minute.
The store is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmarks import machine
from benchmarks.many.figures_page import write
from benchmarks.many.measurement import OURS, measure
from benchmarks.many.rate_search import STEP_S, search
from benchmarks.many.sizes import Sizes
from benchmarks.report import RESULTS


def main(words: list[str]) -> int:
    """Measure, save the figures, and write the page with `--page`."""
    parser = argparse.ArgumentParser(prog="benchmarks.many", description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--producers", type=int, default=0, help="connections that send")
    parser.add_argument("--rate", type=int, default=100_000, help="messages per second")
    parser.add_argument("--skew", type=float, default=1.0, help="topic k gets k^-skew messages")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--window", type=int, default=60, help="seconds between two samples")
    parser.add_argument("--server", default=OURS, help="duemq, or apache-5.3.3 without a page")
    parser.add_argument("--search", action="store_true", help="also search for the highest rates")
    parser.add_argument("--step", type=int, default=STEP_S, help="seconds of one rate")
    parser.add_argument("--root", type=Path, help="directory of the store; by default a new one")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the figures")
    parser.add_argument("--page", action="store_true", help="write the page from these figures")
    parser.add_argument("--page-of", type=Path, help="only write the page, from saved figures")
    args = parser.parse_args(words)
    if args.page_of is not None:
        write(args.page_of)
        return 0
    if args.page and args.server != OURS:
        parser.error("--page is of duemq only: omit it, or --server")
    sizes = Sizes(
        topics=args.topics,
        groups=args.groups,
        connections=args.connections,
        producers=args.producers or max(args.connections // 10, 1),
        rate=args.rate,
        skew=args.skew,
        seconds=args.seconds,
        window_s=args.window,
    )
    root = args.root or Path(mkdtemp(prefix="duemq-many-", dir="/var/tmp"))
    try:
        with machine.shared_with_others() as shared:
            figures = (
                measure(root / "load", sizes, args.server)
                if sizes.seconds
                else {"sizes": asdict(sizes)}
            )
            if args.search:
                figures["rates"] = search(root, sizes, args.step, args.server)
        path = save(figures | {"server": args.server, "shared": shared.as_text()}, args.out, words)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"saved: {path}")
    if args.page:
        write(path)
    return 0


def save(figures: dict[str, Any], folder: Path, words: list[str]) -> Path:
    """Write the figures as JSON; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-many.json"
    command = " ".join(["python -m benchmarks.many", *words])
    facts = {"machine": machine.describe(), "command": command, "scale": 1.0, "outcomes": []}
    path.write_text(json.dumps(facts | figures, indent=1) + "\n")
    return path


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
