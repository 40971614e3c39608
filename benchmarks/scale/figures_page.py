"""Generator of docs/reference/scale-figures.md from the newest files of figures of each size.

    python -m benchmarks.scale page

It writes the text between the two markers of the page. A test checks that the page is up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.page import number, replaced
from benchmarks.report import RESULTS

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "reference" / "scale-figures.md"
TITLES = {
    "fill": "fill",
    "disk": "disk",
    "audit": "`duemq reconcile run`, broker stopped",
    "start": "memory and start",
    "put": "engine: put and deliver one timer",
    "trickle": "500 timers a second for a minute",
    "deliver": "old timers, 250 to 400 a second",
    "spike": "10^6 timers due in one millisecond",
    "search": "list, forecast, lookup",
    "cancel": "cancel by unique key",
    "compact": "compaction of the first log files",
    "migrate": "migration of 10^7 level messages",
}
KINDS = ("commitlog", "consumequeue", "timerlog", "index", "timerwheel", "sums")
Results = dict[str, Any]


def newest() -> dict[int, str]:
    """Return the names of the newest files of figures, by number of pending timers."""
    names = sorted(path.name for path in RESULTS.glob("*-scale-*.json"))
    return {int(name.rpartition("-")[2].removesuffix(".json")): name for name in names}


def write(page: Path = PAGE) -> None:
    """Write the generated part of the page."""
    page.write_text(filled(page.read_text()))


def filled(text: str) -> str:
    """Return the page with the figures between its markers."""
    results = {
        size: json.loads((RESULTS / name).read_text()) for size, name in sorted(newest().items())
    }
    tables = (_table(phase, results) for phase in TITLES)
    return replaced(text, [_sources(results), *filter(None, tables)])


def _sources(results: dict[int, Results]) -> str:
    lines = [
        "| pending | commit | machine | other programs used | figures |",
        "|---|---|---|---|---|",
    ]
    for size, values in results.items():
        machine, name = values["machine"], newest()[size]
        about = f"{machine['cores']} cores of {machine['cpu']}, {machine['memory']}"
        runs = [run for outcome in values["outcomes"] for run in outcome["runs"]]
        others = [float(run["work of others, cores"]) for run in runs]
        used = f"{min(others):.1f} to {max(others):.1f} cores"
        link = f"[{name}](../../benchmarks/results/{name})"
        lines.append(f"| {size:,} | {machine['commit']} | {about} | {used} | {link} |")
    return "\n".join(lines)


def _table(phase: str, results: dict[int, Results]) -> str:
    """Return the table of one phase: a row for each figure, a column for each size; empty if it
    was measured with no size.
    """
    columns = {size: _figures(values, phase) for size, values in results.items()}
    columns = {size: figures for size, figures in columns.items() if figures}
    if not columns:
        return ""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    head = " | ".join(f"{size:,} pending" for size in columns)
    lines = [f"| {TITLES[phase]} | {head} |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        cells = " | ".join(figures.get(name, "") for figures in columns.values())
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def _figures(values: Results, phase: str) -> dict[str, str]:
    for outcome in values["outcomes"]:
        if outcome["load"] == f"scale-{phase}":
            figures = {metric["name"]: metric for metric in outcome["best"]}
            if phase == "disk":
                figures = {name: figures[name] for name in (*KINDS, "timers put")}
            return {
                name: f"{number(metric['value'])} {metric['unit']}"
                for name, metric in figures.items()
            }
    return {}
