"""Page of the figures: a table with a column for each system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.page import BEGIN, END

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "peer-figures.md"
HIDDEN = ("work of others",)


def write_page(results: Path, page: Path = PAGE) -> None:
    """Replace the generated part of the page by the figures of a file."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{generated(results)}\n{END}{after}")


def generated(results: Path) -> str:
    """Return the generated part: machine, table, settings and limits."""
    data = json.loads(results.read_text())
    about, systems = data["machine"], data["systems"]
    lines = [
        f"[Figures](../../benchmarks/results/{results.name}) of `{data['command']}`: "
        f"{about['cpu']}, {about['cores']} cores, {about['memory']}, {about['kernel']}.",
        "",
        "| work | figure | " + " | ".join(s["name"] for s in systems.values()) + " |",
        "|---|---|" + "---|" * len(systems),
        *rows(data["outcomes"], list(systems)),
        "",
        *failures(data["outcomes"], systems),
        "## Settings and limits",
        "",
        "| system | settings | what it does not do |",
        "|---|---|---|",
        *(f"| {s['name']} | {s['settings']} | {s['limits']} |" for s in systems.values()),
    ]
    return "\n".join(lines)


def rows(outcomes: list[dict[str, Any]], systems: list[str]) -> list[str]:
    """Return one row for each figure of each measurement."""
    lines = []
    for name in dict.fromkeys(outcome["load"] for outcome in outcomes):
        of_load = {o["server"]: o for o in outcomes if o["load"] == name}
        work = next(iter(of_load.values()))["what"]
        figures = {
            metric["name"]: metric["unit"]
            for outcome in of_load.values()
            for metric in outcome["median"]
            if metric["name"] not in HIDDEN
        }
        for figure, unit in figures.items():
            cells = [cell(of_load.get(system), figure) for system in systems]
            lines.append(f"| {work} | {figure}, {unit} | " + " | ".join(cells) + " |")
            work = ""
    return lines


def cell(outcome: dict[str, Any] | None, figure: str) -> str:
    """Return the text of one figure; a dash if there is none."""
    for metric in outcome["median"] if outcome else []:
        if metric["name"] == figure:
            value = float(metric["value"])
            return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.3g}"
    return "-"


def failures(outcomes: list[dict[str, Any]], systems: dict[str, dict[str, str]]) -> list[str]:
    """Return a line for each measurement that failed."""
    lines = [
        f"- {o['what']}, {systems.get(o['server'], {'name': o['server']})['name']}: "
        + o["error"].splitlines()[0]
        for o in outcomes
        if o["error"]
    ]
    return [*lines, ""] if lines else []
