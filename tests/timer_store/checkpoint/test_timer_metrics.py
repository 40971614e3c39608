"""timermetrics: Apache's bytes, our counts, never in the way of a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.json_dialect import backup_path
from tests.support.golden_stores import golden_store
from timer_store.checkpoint.timer_metrics import Count, TimerMetrics


@pytest.mark.parametrize("store", ["apache-5.3.3-clean", "apache-5.3.3-killed"])
def test_apache_s_file_there_and_back(store: str) -> None:
    path = golden_store(store) / "config" / "timermetrics"
    metrics = TimerMetrics()
    metrics.load(path)
    assert metrics.counts == {"GoldenTimer": Count(17, 1795225841060)}
    assert (metrics.counter, metrics.version_ms) == (41, 1795225841060)
    assert metrics.text() == path.read_text()


def test_the_text_of_the_specification() -> None:
    metrics = TimerMetrics()
    metrics.update({"TopicTest": 1}, 1_700_000_000_100)
    metrics.update({"TopicTest": 3}, 1_700_000_000_110)
    metrics.update({"TopicTest": 3}, 1_700_000_000_200)
    assert metrics.text() == (
        '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000110},'
        '"timingCount":{"TopicTest":{"count":3,"timeStamp":1700000000110}}}'
    )


@pytest.mark.parametrize(
    ("topic", "text"), [("ä", "\\u00E4"), ("\u4e2d", "\\u4E2D"), ("😀", "\\uD83D\\uDE00")]
)
def test_other_letters_are_escaped_in_upper_case(topic: str, text: str) -> None:
    metrics = TimerMetrics()
    metrics.update({topic: 1}, 5)
    assert f'"{text}":' in metrics.text()
    assert topic in json.loads(metrics.text())["timingCount"]


@given(st.lists(st.dictionaries(st.sampled_from(["A", "B", "C", ""]), st.integers(0, 9))))
def test_every_timer_that_comes_or_goes_is_a_change(steps: list[dict[str, int]]) -> None:
    metrics, now, expected = TimerMetrics(), dict[Any, Any](), 0
    for time_ms, pending in enumerate(steps):
        moved = sum(abs(pending.get(t, 0) - now.get(t, 0)) for t in "ABC")
        assert metrics.update(pending, time_ms) == (moved > 0)
        now, expected = pending, expected + moved
    assert metrics.counter == expected
    found = {topic: item.count for topic, item in metrics.counts.items()}
    assert {**dict.fromkeys(found, 0), **{t: n for t, n in now.items() if t and n}} == found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"timingCount":{"T":{"count":"x"}}}', "\0" * 99])
@pytest.mark.parametrize("backup", [True, False])
def test_a_torn_file_falls_back_to_its_backup_or_to_nothing(
    tmp_path: Path, text: str, backup: bool
) -> None:
    path = tmp_path / "timermetrics"
    metrics = TimerMetrics()
    metrics.update({"T": 1}, 5)
    metrics.write(path)
    metrics.update({"T": 2}, 6)
    metrics.write(path)
    path.write_text(text)
    if not backup:
        backup_path(path).unlink()
    found = TimerMetrics()
    found.load(path)
    assert found.counts == ({"T": Count(1, 5)} if backup else {})
