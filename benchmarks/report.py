"""Benchmark report: comparison table and JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench import Load, Metric, as_json

Row = tuple[str, ...]
RESULTS = Path(__file__).parent / "results"


@dataclass(slots=True)
class Outcome:
    """Figures of one load on one server, of all repetitions."""

    load: Load
    server: str
    runs: list[list[Metric]] = field(default_factory=list)
    error: str = ""

    @property
    def metrics(self) -> dict[str, Metric]:
        """Medians of the figures."""
        medians = {}
        for metric in self.runs[0] if self.runs else []:
            values = [m.value for run in self.runs for m in run if m.name == metric.name]
            medians[metric.name] = Metric(
                name=metric.name, value=median(values), unit=metric.unit, better=metric.better
            )
        return medians


def table(outcomes: list[Outcome], *, base: str, ours: str) -> str:
    """Return a table of the figures of two servers, with the ratio of ours to the base."""
    rows: list[Row] = [("work", "figure", "unit", base, ours, "ratio", "")]
    loads = dict.fromkeys(outcome.load.name for outcome in outcomes)
    for name in loads:
        by_server = {o.server: o for o in outcomes if o.load.name == name}
        rows += _rows(name, by_server.get(base), by_server.get(ours))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _rows(name: str, base: Outcome | None, ours: Outcome | None) -> list[Row]:
    rows: list[Row] = []
    present = [outcome for outcome in (base, ours) if outcome]
    figures = {m.name: m for outcome in present for m in outcome.metrics.values()}
    for figure, metric in figures.items():
        left = base.metrics.get(figure) if base else None
        right = ours.metrics.get(figure) if ours and ours is not base else None
        rows.append((name, figure, metric.unit, _value(left), _value(right), *_ratio(left, right)))
        name = ""
    for outcome in present:
        if outcome.error:
            rows.append((name, f"{outcome.server}: {outcome.error.splitlines()[0]}", *[""] * 5))
    return rows


def _value(metric: Metric | None) -> str:
    if metric is None:
        return "-"
    return f"{metric.value:,.0f}" if metric.value >= 100 else f"{metric.value:,.3g}"


def _ratio(base: Metric | None, ours: Metric | None) -> tuple[str, str]:
    """Return the ratio ours / base, and whether ours is better."""
    if base is None or ours is None:
        return "", ""
    if base.value == ours.value:
        return "1.00", "same"
    better = (ours.value > base.value) == (ours.better == "more")
    ratio = f"{ours.value / base.value:.2f}" if base.value else "-"
    return ratio, "better" if better else "worse"


def save(outcomes: list[Outcome], facts: dict[str, Any], folder: Path) -> Path:
    """Write all outcomes as JSON and return the path of the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    entries = [
        {
            "load": outcome.load.name,
            "what": outcome.load.what,
            "server": outcome.server,
            "error": outcome.error,
            "median": as_json(list(outcome.metrics.values())),
            "runs": [as_json(run) for run in outcome.runs],
        }
        for outcome in outcomes
    ]
    part = path.with_suffix(".tmp")
    part.write_text(json.dumps({**facts, "outcomes": entries}, indent=1) + "\n")
    part.rename(path)
    return path
