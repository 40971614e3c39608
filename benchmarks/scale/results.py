"""File of figures in benchmarks/results, from the runs of all phases on one store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.scale.scale_store import State

Figures = dict[str, dict[str, Any]]


def save(state: State, folder: Path) -> Path:
    """Write the runs with the current number of pending timers as JSON; return the path."""
    facts = machine.describe()
    facts |= {"pending": str(state.filled + state.sent)}
    phases = {
        name: [run for run in runs if run["pending"] == state.pending]
        for name, runs in state.phases.items()
    }
    outcomes = [
        {
            "load": f"scale-{phase}",
            "server": "duemq",
            "best": list(best(runs).values()),
            "runs": runs,
        }
        for phase, runs in phases.items()
        if runs
    ]
    values = {
        "machine": facts,
        "command": f"make bench-scale PENDING={state.pending}",
        "pending": state.pending,
        "scale": 1.0,
        "outcomes": outcomes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-scale-{state.pending}.json"
    path.write_text(json.dumps(values, indent=1) + "\n")
    return path


def best(runs: Iterable[dict[str, Any]]) -> Figures:
    """Return the best value of each figure in several runs of a phase; of faults the worst."""
    figures: Figures = {}
    for metric in (metric for run in runs for metric in run["metrics"]):
        other = figures.get(metric["name"])
        wants_less = metric["better"] == "less" and metric["unit"] != "messages"
        if other is None or (metric["value"] < other["value"]) == wants_less:
            figures[metric["name"]] = metric
    return figures
