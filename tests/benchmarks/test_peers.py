"""The comparison with other systems runs, and its page shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import page
from benchmarks.peers.__main__ import main, parse
from tests.support.extended import extended
from tests.support.requirements import need_commands, skip_without

COUNTS = ("lost", "duplicates", "early", "damaged")


@pytest.mark.extended
@pytest.mark.parametrize("name", ["duemq", extended("nats"), "redis", extended("postgres")])
def test_a_small_run_measures_everything(name: str, tmp_path: Path) -> None:
    if name == "redis":
        with skip_without():
            need_commands("redis-server")
    words = [
        "--systems",
        name,
        "--only",
        "spike,cancel",
        "--scale",
        "0.001",
        "--out",
        str(tmp_path),
    ]
    assert main(words) == 0
    (path,) = tmp_path.glob("*.json")
    outcomes = json.loads(path.read_text())["outcomes"]
    figures = {m["name"]: m["value"] for o in outcomes for m in o["median"]}
    assert {figures[count] for count in COUNTS} == {0}
    assert figures["last received after"] >= figures["half received after"] >= 0
    assert figures["cancels"] > 0


def test_the_page_has_a_column_for_each_system_and_names_failures(tmp_path: Path) -> None:
    results, text = tmp_path / "r.json", tmp_path / "page.md"
    outcome = {"load": "spike", "what": "a spike", "runs": []}
    metric = {"name": "last received after", "value": 1_234.0, "unit": "ms", "better": "less"}
    systems = {
        name: {"name": name.upper(), "settings": f"set {name}", "limits": f"not {name}"}
        for name in ("a", "b")
    }
    outcomes = [
        outcome | {"server": "a", "error": "", "median": [metric]},
        outcome | {"server": "b", "error": "RuntimeError: refused\nmore", "median": []},
    ]
    about = {"cpu": "c", "cores": "2", "memory": "1 GiB", "kernel": "Linux"}
    data = {"machine": about, "command": "x", "systems": systems, "outcomes": outcomes}
    results.write_text(json.dumps(data))
    text.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write_page(results, text)
    written = text.read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "old" not in written
    assert "| a spike | last received after, ms | 1,234 | - |" in written
    assert "- a spike, B: RuntimeError: refused" in written
    assert "| A | set a | not a |" in written


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--only", "spikes"], ["--systems", "kafka"]):
        with pytest.raises(SystemExit):
            parse(words)
    errors = capsys.readouterr().err
    assert "no measurement spikes; there are cancel" in errors
    assert "no system kafka; there are duemq" in errors
