"""The measurement with many topics, groups and connections, on a small size; no message is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.many import rate_search
from benchmarks.many.__main__ import main
from benchmarks.many.broker_sample import LONGEST_S, buckets, quantile_s

METRICS = """
duemq_x_seconds_bucket{le="0.1"} 1.0
duemq_x_seconds_bucket{le="0.5"} 3.0
duemq_x_seconds_bucket{le="+Inf"} 3.0
duemq_x_seconds_sum 0.6
"""


@pytest.mark.extended
@pytest.mark.interop
def test_a_small_size(tmp_path: Path) -> None:
    sizes = {"topics": 40, "groups": 10, "connections": 30, "rate": 400, "seconds": 4, "window": 2}
    words = [f"--{name}={value}" for name, value in sizes.items()]
    folders = [f"--root={tmp_path / 'root'}", f"--out={tmp_path / 'out'}"]
    assert main([*words, *folders]) == 0
    [path] = (tmp_path / "out").iterdir()
    results = json.loads(path.read_text())
    final = results["final"]
    assert [final[name] for name in ("lost", "duplicates", "early", "corrupt")] == [0] * 4
    assert final["received"] == final["accepted"] > 0
    assert results["connected"]["connections"] == 30
    assert sum(row["received"] for row in results["windows"]) == final["received"]


@pytest.mark.extended
@pytest.mark.interop
def test_a_search_ends_at_the_first_late_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: Iterator[bool]
    monkeypatch.setattr(rate_search, "FIRST_RATE", 100)
    monkeypatch.setattr(rate_search, "is_exceeded", lambda row: next(late))
    sizes = {"topics": 40, "groups": 10, "connections": 30, "seconds": 0, "step": 2}
    words = [f"--{name}={value}" for name, value in sizes.items()]
    folders = [f"--root={tmp_path / 'root'}", f"--out={tmp_path / 'out'}"]
    late = iter([False, True, False, True] * len(rate_search.TOGETHER))
    assert main([*words, *folders, "--search"]) == 0
    [path] = (tmp_path / "out").iterdir()
    results = json.loads(path.read_text())["rates"]["by_together"]
    for result in results.values():
        assert [row["rate"] for row in result["windows"]] == [100, 200]
        assert [row["on_time"] for row in result["windows"]] == [True, False]
        final = result["final"]
        assert [final[name] for name in ("lost", "duplicates", "early", "corrupt")] == [0] * 4
        assert final["received"] == final["accepted"] > 0
    single, together = (results[name]["final"] for name in ("1", "32"))
    assert together["pulls"] / together["received"] < single["pulls"] / single["received"]


@pytest.mark.parametrize(
    ("before", "longest"),
    [
        ({}, 0.5),
        ({"0.1": 1.0, "0.5": 3.0, "+Inf": 3.0}, 0.0),
        ({"0.1": 0.0, "0.5": 2.0, "+Inf": 2.0}, 0.1),
        ({"0.1": 1.0, "0.5": 3.0, "+Inf": 2.0}, LONGEST_S),
    ],
)
def test_the_longest_pause_between_two_samples(before: dict[str, float], longest: float) -> None:
    after = buckets(METRICS, "duemq_x_seconds")
    assert after == {"0.1": 1.0, "0.5": 3.0, "+Inf": 3.0, "sum": 0.6}
    assert quantile_s(before, after) == longest


def test_a_quantile_of_all_series_of_a_histogram() -> None:
    name = "duemq_level_lateness_seconds"
    text = "".join(
        f'{name}_bucket{{le="{bound}",level="{level}"}} {count}\n'
        for level in (1, 2)
        for bound, count in (("0.001", 40 * level), ("0.01", 49 * level), ("+Inf", 50 * level))
    )
    after = buckets(f'{text}{name}_sum{{level="1"}} 0.5\n{name}_sum{{level="2"}} 1.5\n', name)
    assert after == {"0.001": 120.0, "0.01": 147.0, "+Inf": 150.0, "sum": 2.0}
    assert quantile_s({}, after, 0.8) == 0.001
    assert quantile_s({}, after, 0.81) == 0.01
    assert quantile_s({}, after, 0.99) == LONGEST_S
