"""Every phase of the measurement with many pending timers, on a tiny store; no message is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scale.__main__ import main
from benchmarks.scale.phases import PHASES
from benchmarks.scale.results import best

PENDING = 2_000


@pytest.mark.extended
@pytest.mark.interop
def test_all_phases_on_a_tiny_store(tmp_path: Path) -> None:
    words = ["--pending", str(PENDING), "--root", str(tmp_path / "root"), "--out"]
    phases = [phase for phase in ("fill", *PHASES, "report") if phase != "deliver"]  # it waits
    assert main([*phases, *words, str(tmp_path / "out")]) == 0
    [path] = (tmp_path / "out").iterdir()
    results = json.loads(path.read_text())
    figures = {outcome["load"]: outcome["best"] for outcome in results["outcomes"]}
    values = {f"{load}/{m['name']}": m["value"] for load, ms in figures.items() for m in ms}
    assert int(results["machine"]["pending"]) >= PENDING
    assert values["scale-migrate/migrate, messages"] == PENDING
    assert values["scale-compact/copied"] > 0
    assert values["scale-cancel/not cancelled"] == 0
    assert values["scale-audit/verdict pending"] == PENDING
    assert values["scale-audit/findings listed"] == 0
    faults = {name: value for name, value in values.items() if "lost" in name}
    assert len(faults) == 5
    assert set(faults.values()) == {0}


@pytest.mark.extended
@pytest.mark.interop
def test_fill_continues_where_it_stopped(tmp_path: Path) -> None:
    words = ["--root", str(tmp_path), "--pending"]
    for pending in (500, 1_000):
        assert main(["fill", "disk", *words, str(pending)]) == 0
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["filled"], state["sent"]) == (980, 20)


def test_the_best_of_several_runs_but_the_worst_of_faults() -> None:
    def run(ready_s: float, rate: float, lost: int) -> dict[str, object]:
        metrics = [
            {"name": "ready", "value": ready_s, "unit": "s", "better": "less"},
            {"name": "rate", "value": rate, "unit": "msg/s", "better": "more"},
            {"name": "lost", "value": lost, "unit": "messages", "better": "less"},
        ]
        return {"metrics": metrics}

    figures = best([run(1.5, 10, 0), run(1.2, 8, 1), run(1.3, 9, 0)])
    assert {name: figure["value"] for name, figure in figures.items()} == {
        "ready": 1.2,
        "rate": 10,
        "lost": 1,
    }
