"""Generated text and tables of the figure pages, written between two markers of a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import run
from benchmarks.report import RESULTS

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
EMPTY = f"\n{BEGIN}\n{END}\n"
SERVERS = (run.OURS, run.APACHE)
BUSY_CORES = 0.3
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """Performance goal.

    Attributes:
        names: Names of the figures, which are added.
        required: Required value.
        target: Target value.
        more: Whether larger values are better.
        factor: Factor from the unit of the figures to the unit of the goal.
        any_size: Whether the goal also applies at a small scale.
        to_apache: Whether the value is divided by Apache's.
    """

    work: str
    load: str
    names: tuple[str, ...]
    unit: str
    required: float
    target: float
    more: bool = False
    factor: float = 1.0
    any_size: bool = False
    to_apache: bool = False


def newest(loads: set[str]) -> str:
    """Return the name of the newest file of figures that contains all of the given loads."""
    for path in sorted(RESULTS.glob("*.json"), reverse=True):
        if loads <= {outcome["load"] for outcome in json.loads(path.read_text())["outcomes"]}:
            return path.name
    raise SystemExit(f"no file in {RESULTS} has figures of {', '.join(sorted(loads))}")


def named(page: str) -> str:
    """Return the name of the file of figures that a page links to."""
    match = re.search(r"\(\.\./\.\./benchmarks/results/(\S+\.json)\)", page)
    if match is None:
        raise ValueError("the page has no link to a file in benchmarks/results")
    return match[1]


def read(name: str) -> Found:
    """Return the figures in a file of benchmarks/results."""
    results: Found = json.loads((RESULTS / name).read_text())
    return results


def replaced(page: str, parts: Iterable[str]) -> str:
    """Return a page with new parts between its markers."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return head + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + tail


def figures(results: Found, load: str, server: str = run.OURS) -> dict[str, tuple[float, str]]:
    """Return the figures of a load, (value, unit) by name; empty if the load failed."""
    for outcome in results["outcomes"]:
        if (outcome["load"], outcome["server"]) == (load, server):
            return {m["name"]: (float(m["value"]), str(m["unit"])) for m in outcome["median"]}
    return {}


def about(name: str, results: Found, loads: Sequence[str]) -> str:
    """Return the source of the figures, and a note if the machine was busy."""
    machine = results["machine"]
    busy = _cores("work of others", results, loads)
    stolen = _cores("stolen by the host", results, loads)
    took = f"; the hypervisor took up to {max(stolen):.1f}" if stolen else ""
    text = (
        f"`{results['command']}` at commit {machine['commit']}: {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory']}, {machine['kernel']}; other programs kept "
        f"{min(busy, default=0):.1f} to {max(busy, default=0):.1f} cores busy{took}. All figures: "
        f"[{name}](../../benchmarks/results/{name})."
    )
    if max([*busy, *stolen], default=0) > BUSY_CORES:
        text += (
            "\n\n**The machine was busy**: rely on ratios and processor times, not on wall times."
        )
    if results["scale"] != 1.0:
        text += (
            f"\n\n**Scale {results['scale']:g}**, not full size: most of a command's time is"
            " its start, and wall times are not meaningful."
        )
    return text


def _cores(name: str, results: Found, loads: Sequence[str]) -> list[float]:
    """Return the values of a figure in cores, for each load."""
    tables = [figures(results, load, server) for load in loads for server in SERVERS]
    return [each[name][0] for each in tables if name in each]


def goals_table(results: Found, goals: Sequence[Goal]) -> str:
    """Return a table of the goals and whether they are met."""
    rows = ["| work | measured | required | target | |", "|---|---|---|---|---|"]
    for goal in goals:
        value = value_of(goal, results)
        if value is None:
            rows.append(f"| {goal.work} | failed | {_limits(goal)} | |")
            continue
        counts = results["scale"] == 1.0 or goal.any_size
        word = verdict_of(goal, value) if counts else "not at this scale"
        rows.append(f"| {goal.work} | {number(value)} {goal.unit} | {_limits(goal)} | {word} |")
    return "\n".join(rows)


def value_of(goal: Goal, results: Found) -> float | None:
    """Return the measured value, in the unit of the goal; None if a load failed."""
    ours, base = _sum(goal, results, run.OURS), _sum(goal, results, run.APACHE)
    if not goal.to_apache:
        return ours
    return None if ours is None or not base else ours / base


def _sum(goal: Goal, results: Found, server: str) -> float | None:
    values = figures(results, goal.load, server)
    if not values.keys() >= set(goal.names):
        return None
    return sum(values[name][0] for name in goal.names) * goal.factor


def _limits(goal: Goal) -> str:
    return f"{number(goal.required)} | {number(goal.target)}"


def verdict_of(goal: Goal, value: float) -> str:
    """Return whether a goal is met: target met, met, or missed."""

    def is_met(limit: float) -> bool:
        return value >= limit if goal.more else value <= limit

    return "target met" if is_met(goal.target) else "met" if is_met(goal.required) else "**missed**"


def all_figures(results: Found, loads: Sequence[str]) -> str:
    """Return a table of every figure of DueMQ."""
    rows = ["| load | figure | value |", "|---|---|---|"]
    for load in loads:
        title = f"`{load}`"
        for name, (value, unit) in figures(results, load).items():
            rows.append(f"| {title} | {name} | {number(value)} {unit} |")
            title = ""
    return "\n".join(rows)


def number(value: float) -> str:
    """Return a number rounded to an integer, or to three digits if it is below 100."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
