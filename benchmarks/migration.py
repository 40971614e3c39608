"""Migration benchmarks, and generator of docs/reference/migration-figures.md.

    python -m benchmarks.migration               run all loads at full size, write the page
    python -m benchmarks.migration --scale 0.01  quick functional check
    python -m benchmarks.migration --fill-only   write the page from the newest figures

The program generates the text between the two markers of the page, from a file in
benchmarks/results and from docs/figures/migration-kills.json. A test checks that the page is
up to date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import page, run
from benchmarks.page import Found, Goal, figures, number

TOP = Path(__file__).parents[1]
PAGE = TOP / "docs" / "reference" / "migration-figures.md"
KILLS = TOP / "docs" / "figures" / "migration-kills.json"
LIVE, TRAFFIC, OFFLINE, BY_HAND = (
    "migrate-live",
    "migrate-traffic",
    "migrate-offline",
    "migrate-by-hand",
)
LOADS = (LIVE, TRAFFIC, OFFLINE, BY_HAND)
MIB, MB = 1 << 20, 1_000_000


GOALS = (
    Goal("live backfill, idle broker", LIVE, ("drain",), "M/s", 1, 3, more=True, factor=1e-6),
    Goal("rollback of it", LIVE, ("rollback",), "M/s", 1, 3, more=True, factor=1e-6),
    Goal("appended for each message", LIVE, ("timer log", "marks"), "bytes", 60, 60, any_size=True),
    Goal("anonymous memory", LIVE, ("anonymous growth",), "MB more", 100, 30, factor=MIB / MB),
    Goal(
        "p99 of 5 k/s of level traffic while it runs, to before",
        TRAFFIC,
        ("late p99, drain / before",),
        "times",
        2,
        1,
    ),
    Goal("offline, 4.9.7 store", OFFLINE, ("whole command",), "s", 20, 6),
)


def main(words: list[str]) -> int:
    """Measure, except with --fill-only, and write the page; return 1 if a load failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.migration")
    parser.add_argument("--fill-only", action="store_true", help="use the newest figures")
    parser.add_argument("--scale", default="1.0", help="multiplies counts of messages")
    parser.add_argument("--work-dir", help="folder for the stores; default: temporary")
    args = parser.parse_args(words)
    failed = 0
    if not args.fill_only:
        more = ["--work-dir", args.work_dir] if args.work_dir else []
        failed = run.main(["--migration", "--scale", args.scale, *more])
    PAGE.write_text(filled(PAGE.read_text(), page.newest(set(LOADS))))
    print(f"written: {PAGE}")
    return failed


def filled(text: str, name: str) -> str:
    """Return a page with the figures of a file in benchmarks/results between its markers."""
    results = page.read(name)
    kills = json.loads(KILLS.read_text()) if KILLS.exists() else None
    parts = [page.about(name, results, LOADS), page.goals_table(results, GOALS)]
    parts += [page.all_figures(results, (LIVE, TRAFFIC, OFFLINE)), _by_hand(results)]
    parts += [_kills(kills)] if kills else []
    return page.replaced(text, parts)


def _by_hand(results: Found) -> str:
    """Return the table that compares migration with reading and resending by a client."""
    theirs, ours = (figures(results, BY_HAND, server) for server in (run.APACHE, run.OURS))
    live = figures(results, LIVE)
    moved = {
        "read and sent": live.get("drain"),
        "cpu": live.get("drain, cpu"),
        "commit log": live.get("marks"),
        "pages made dirty": live.get("pages made dirty, drain"),
    }
    rows = [
        "| `migrate-by-hand` | Apache 5.3.3, by hand | DueMQ, by hand | DueMQ, live backfill |",
        "|---|---|---|---|",
    ]
    for name, migrated in moved.items():
        cells = [_cell(each) for each in (theirs.get(name), ours.get(name), migrated)]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(value: tuple[float, str] | None) -> str:
    return "-" if value is None else f"{number(value[0])} {value[1]}"


def _kills(kills: Found) -> str:
    rows = [
        f"`kill -9` {kills['kills']} times at random under traffic, in both directions (seed "
        f"{kills['seed']}; `tests/crash/test_kill_migration.py`). States of levels, as last "
        "reported before a kill; a kill counts once for each state of a level:",
        "",
        "| state | kills |",
        "|---|---|",
        *(f"| {state} | {n} |" for state, n in sorted(kills["kills_by_state"].items())),
        "",
        f"Sent {kills['sent']:,}, acknowledged {kills['acknowledged']:,}, arrived "
        f"{kills['arrived']:,}; lost, duplicated, early: {'; '.join(kills['faults']) or 'none'}.",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
