"""Pages of figures: words that are kept, and between two marks what a file of figures says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import run
from benchmarks.report import RESULTS

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
SERVERS = (run.OURS, run.APACHE)
BUSY_CORES = 0.3
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of what must be reached.

    Attributes:
        names: of figures, added up.
        factor: from the figure's unit to that of the goal.
        any_size: it can be judged at a small scale, too.
        to_apache: the figure is divided by Apache's.
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
    to_apache: bool = False


def newest(loads: set[str]) -> str:
    """Return the name of the newest figures that contain all of these loads."""
    for path in sorted(RESULTS.glob("*.json"), reverse=True):
        if loads <= {outcome["load"] for outcome in json.loads(path.read_text())["outcomes"]}:
            return path.name
    raise SystemExit(f"{RESULTS} has no figures of {', '.join(sorted(loads))}")


def named(page: str) -> str:
    """Return the name of the figures that a page was made from."""
    found = re.search(r"\(\.\./\.\./benchmarks/results/(\S+\.json)\)", page)
    if found is None:
        raise ValueError("the page names no figures")
    return found[1]


def read(name: str) -> Found:
    """Return the figures in a file of benchmarks/results."""
    found: Found = json.loads((RESULTS / name).read_text())
    return found


def replaced(page: str, parts: Iterable[str]) -> str:
    """Return a page with these parts between its marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return head + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + tail


def figures(found: Found, load: str, server: str = run.OURS) -> dict[str, tuple[float, str]]:
    """Return (value, unit) of a load by the figure's name; none if it failed."""
    for outcome in found["outcomes"]:
        if (outcome["load"], outcome["server"]) == (load, server):
            return {m["name"]: (float(m["value"]), str(m["unit"])) for m in outcome["median"]}
    return {}


def about(name: str, found: Found, loads: Sequence[str]) -> str:
    """Return where the figures come from, and whether the machine was busy."""
    machine = found["machine"]
    busy = _cores("work of others", found, loads)
    stolen = _cores("stolen by the host", found, loads)
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


def _cores(name: str, found: Found, loads: Sequence[str]) -> list[float]:
    """Return how many cores were kept busy so, in each load."""
    known = [figures(found, load, server) for load in loads for server in SERVERS]
    return [each[name][0] for each in known if name in each]


def goals_table(found: Found, goals: Sequence[Goal]) -> str:
    """Return a table of the goals and whether they are reached."""
    rows = ["| work | came out | must | aim | |", "|---|---|---|---|---|"]
    for goal in goals:
        value = value_of(goal, found)
        if value is None:
            rows.append(f"| {goal.work} | failed | {_limits(goal)} | |")
            continue
        counts = found["scale"] == 1.0 or goal.any_size
        word = verdict_of(goal, value) if counts else "not at this scale"
        rows.append(f"| {goal.work} | {number(value)} {goal.unit} | {_limits(goal)} | {word} |")
    return "\n".join(rows)


def value_of(goal: Goal, found: Found) -> float | None:
    """Return what came out, in the unit of the goal; None if a load failed."""
    ours, base = _sum(goal, found, run.OURS), _sum(goal, found, run.APACHE)
    if not goal.to_apache:
        return ours
    return None if ours is None or not base else ours / base


def _sum(goal: Goal, found: Found, server: str) -> float | None:
    known = figures(found, goal.load, server)
    if not known.keys() >= set(goal.names):
        return None
    return sum(known[name][0] for name in goal.names) * goal.factor


def _limits(goal: Goal) -> str:
    return f"{number(goal.must)} | {number(goal.aim)}"


def verdict_of(goal: Goal, value: float) -> str:
    """Return in a word whether a goal is reached."""

    def reached(limit: float) -> bool:
        return value >= limit if goal.more else value <= limit

    return "aim reached" if reached(goal.aim) else "reached" if reached(goal.must) else "**missed**"


def all_figures(found: Found, loads: Sequence[str]) -> str:
    """Return a table of every figure of DueMQ."""
    rows = ["| load | figure | value |", "|---|---|---|"]
    for load in loads:
        title = f"`{load}`"
        for name, (value, unit) in figures(found, load).items():
            rows.append(f"| {title} | {name} | {number(value)} {unit} |")
            title = ""
    return "\n".join(rows)


def number(value: float) -> str:
    """Return a number with three digits at least."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
