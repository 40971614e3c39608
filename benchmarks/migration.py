"""Measures migration and writes what came out into docs/reference/migration-figures.md.

    python -m benchmarks.migration               all loads at full size, then the page
    python -m benchmarks.migration --scale 0.01  a quick look whether everything works
    python -m benchmarks.migration --fill-only   the page again, from the newest figures

The page keeps its words; what stands between its two marks is made here, from the figures it names
and from docs/figures/migration-kills.json. A test makes it again and compares.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import run
from benchmarks.report import RESULTS

TOP = Path(__file__).parents[1]
PAGE = TOP / "docs" / "reference" / "migration-figures.md"
KILLS = TOP / "docs" / "figures" / "migration-kills.json"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
LIVE, TRAFFIC, OFFLINE, BY_HAND = (
    "migrate-live", "migrate-traffic", "migrate-offline", "migrate-by-hand",
)  # fmt: skip
LOADS, SERVERS = (LIVE, TRAFFIC, OFFLINE, BY_HAND), (run.OURS, run.APACHE)
MIB, MB = 1 << 20, 1_000_000
BUSY_CORES = 0.3
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of what must be reached.

    Attributes:
        names: of figures, added up.
        factor: from the figure's unit to that of the goal.
        any_size: it can be judged at a small scale, too.
    """

    work: str
    load: str
    names: tuple[str, ...]
    unit: str
    must: float
    aim: float
    more: bool = False
    factor: float = 1.0
    any_size: bool = False


GOALS = (
    Goal("live backfill, idle broker", LIVE, ("drain",), "M/s", 1, 3, more=True, factor=1e-6),
    Goal("rollback of it", LIVE, ("rollback",), "M/s", 1, 3, more=True, factor=1e-6),
    Goal("appended for each message", LIVE, ("timer log", "marks"), "bytes", 60, 60, any_size=True),
    Goal("anonymous memory", LIVE, ("anonymous growth",), "MB more", 100, 30, factor=MIB / MB),
    Goal(
        "p99 of 5 k/s of level traffic while it runs, to before", TRAFFIC,
        ("late p99, drain / before",), "times", 2, 1,
    ),
    Goal("offline, 4.9.7 store", OFFLINE, ("whole command",), "s", 20, 6),
)  # fmt: skip


def main(words: list[str]) -> int:
    """Measure, unless skipped, and write the page; return 1 if a load failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.migration")
    parser.add_argument("--fill-only", action="store_true", help="take the newest figures")
    parser.add_argument("--scale", default="1.0", help="multiplies counts of messages")
    parser.add_argument("--work-dir", help="folder for the stores; default: temporary")
    args = parser.parse_args(words)
    failed = 0
    if not args.fill_only:
        more = ["--work-dir", args.work_dir] if args.work_dir else []
        failed = run.main(["--migration", "--scale", args.scale, *more])
    PAGE.write_text(filled(PAGE.read_text(), newest()))
    print(f"written: {PAGE}")
    return failed


def newest() -> str:
    """Return the name of the newest figures of all loads about migration."""
    for path in sorted(RESULTS.glob("*.json"), reverse=True):
        loads = {outcome["load"] for outcome in json.loads(path.read_text())["outcomes"]}
        if {LIVE, TRAFFIC, OFFLINE, BY_HAND} <= loads:
            return path.name
    raise SystemExit(f"nothing about migration in {RESULTS}")


def named(page: str) -> str:
    """Return the name of the figures that a page was made from."""
    found = re.search(r"\(\.\./\.\./benchmarks/results/(\S+\.json)\)", page)
    if found is None:
        raise ValueError("the page names no figures")
    return found[1]


def filled(page: str, name: str) -> str:
    """Return a page with the figures of a file in benchmarks/results between its marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    found = json.loads((RESULTS / name).read_text())
    kills = json.loads(KILLS.read_text()) if KILLS.exists() else None
    parts = [_about(name, found), _goals(found), _others(found), _by_hand(found)]
    parts += [_kills(kills)] if kills else []
    return head + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + tail


def figures(found: Found, load: str, server: str = run.OURS) -> dict[str, tuple[float, str]]:
    """Return (value, unit) of a load by the figure's name; none if it failed."""
    for outcome in found["outcomes"]:
        if (outcome["load"], outcome["server"]) == (load, server):
            return {m["name"]: (float(m["value"]), str(m["unit"])) for m in outcome["median"]}
    return {}


def _about(name: str, found: Found) -> str:
    machine = found["machine"]
    busy = _cores("work of others", found)
    stolen = _cores("stolen by the host", found)
    took = f", the host took up to {max(stolen):.1f}" if stolen else ""
    text = (
        f"`{found['command']}` at commit {machine['commit']}: {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory']}, {machine['kernel']}; other programs kept "
        f"{min(busy, default=0):.1f} to {max(busy, default=0):.1f} cores busy{took}. All of it: "
        f"[{name}](../../benchmarks/results/{name})."
    )
    if max([*busy, *stolen], default=0) > BUSY_CORES:
        text += "\n\n**The machine was busy**: read ratios and processor times, not times."
    if found["scale"] != 1.0:
        text += (
            f"\n\n**Scale {found['scale']:g}**, not the full sizes: whole commands are mostly their"
            " start, and times say little."
        )
    return text


def _cores(name: str, found: Found) -> list[float]:
    """Return how many cores were kept busy so, in each load."""
    known = [figures(found, load, server) for load in LOADS for server in SERVERS]
    return [each[name][0] for each in known if name in each]


def _goals(found: Found) -> str:
    rows = ["| work | came out | must | aim | |", "|---|---|---|---|---|"]
    for goal in GOALS:
        known = figures(found, goal.load)
        if not all(name in known for name in goal.names):
            rows.append(f"| {goal.work} | failed | {_limits(goal)} | |")
            continue
        value = sum(known[name][0] for name in goal.names) * goal.factor
        counts = found["scale"] == 1.0 or goal.any_size
        word = verdict_of(goal, value) if counts else "not at this scale"
        rows.append(f"| {goal.work} | {_number(value)} {goal.unit} | {_limits(goal)} | {word} |")
    return "\n".join(rows)


def _limits(goal: Goal) -> str:
    return f"{_number(goal.must)} | {_number(goal.aim)}"


def verdict_of(goal: Goal, value: float) -> str:
    def reached(limit: float) -> bool:
        return value >= limit if goal.more else value <= limit

    return "aim reached" if reached(goal.aim) else "reached" if reached(goal.must) else "**missed**"


def _others(found: Found) -> str:
    rows = ["| load | figure | value |", "|---|---|---|"]
    for load in (LIVE, TRAFFIC, OFFLINE):
        title = f"`{load}`"
        for name, (value, unit) in figures(found, load).items():
            rows.append(f"| {title} | {name} | {_number(value)} {unit} |")
            title = ""
    return "\n".join(rows)


def _by_hand(found: Found) -> str:
    """Return the table of what can be done without migration, beside ours."""
    theirs, ours = (figures(found, BY_HAND, server) for server in (run.APACHE, run.OURS))
    live = figures(found, LIVE)
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
    for name, ours_too in moved.items():
        cells = [_cell(each) for each in (theirs.get(name), ours.get(name), ours_too)]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(value: tuple[float, str] | None) -> str:
    return "-" if value is None else f"{_number(value[0])} {value[1]}"


def _kills(kills: Found) -> str:
    rows = [
        f"`kill -9` {kills['kills']} times at random under traffic, both directions (seed "
        f"{kills['seed']}; `tests/crash/test_kill_migration.py`). A level's state, as it was told "
        "last before a kill; a kill counts once for each state that a level was in:",
        "",
        "| state | kills |",
        "|---|---|",
        *(f"| {state} | {n} |" for state, n in sorted(kills["kills_by_state"].items())),
        "",
        f"Sent {kills['sent']:,}, acknowledged {kills['acknowledged']:,}, arrived "
        f"{kills['arrived']:,}; lost, doubled, early: {'; '.join(kills['faults']) or 'none'}.",
    ]
    return "\n".join(rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
