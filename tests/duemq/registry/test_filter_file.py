"""consumerFilter.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duemq.registry.config_file import ConfigFile
from duemq.registry.filter_file import DEAD_KEPT_MS, FilterFile
from duemq.registry.filter_table import FilterTable
from duemq.registry.subscriptions import parse_expression
from duemq_common.clock import FakeClock


def opened(root: Path, clock: FakeClock) -> FilterFile:
    return FilterFile.loaded(lambda name: root / name, clock)


def registered(root: Path, clock: FakeClock) -> FilterFile:
    file = opened(root, clock)
    file.table.register("G", [parse_expression("T", "a > 'ü' OR b", "SQL92", 7)])
    file.persist()
    return file


def test_the_file_has_apaches_form(tmp_path: Path) -> None:
    clock = FakeClock()
    file = registered(tmp_path, clock)
    reported = json.loads((tmp_path / "consumerFilter.json").read_text())
    assert reported == {
        "filterDataByTopic": {
            "T": {
                "groupFilterData": {
                    "G": {
                        "bornTime": clock.now_ms(),
                        "clientVersion": 7,
                        "consumerGroup": "G",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a > 'ü' OR b",
                        "expressionType": "SQL92",
                        "topic": "T",
                    }
                },
                "topic": "T",
            }
        }
    }
    file.table.unregister("G")
    file.persist()
    reported = json.loads((tmp_path / "consumerFilter.json").read_text())
    assert reported["filterDataByTopic"]["T"]["groupFilterData"]["G"]["dead"] is True


def test_a_restart_has_the_filters_and_takes_them_for_dead(tmp_path: Path) -> None:
    clock = FakeClock()
    born_ms = clock.now_ms()
    registered(tmp_path, clock)
    clock.advance(100_000)
    [found] = opened(tmp_path, clock).table
    assert (found.group, found.topic, found.version, found.kind) == ("G", "T", 7, "SQL92")
    assert (found.born_ms, found.dead_ms) == (born_ms, clock.now_ms() - 30_000)


def test_a_restarted_consumer_makes_its_filter_alive(tmp_path: Path) -> None:
    clock = FakeClock()
    registered(tmp_path, clock)
    table = opened(tmp_path, clock).table
    table.register("G", [parse_expression("T", "a = 1", "SQL92", 8)])
    found = table.find("T", "G")
    assert found is not None
    assert (found.version, found.dead_ms, table.compiled(found) is None) == (8, 0, False)


def test_the_file_is_written_only_after_changes(tmp_path: Path) -> None:
    clock = FakeClock()
    file = opened(tmp_path, clock)
    file.persist()
    assert not (tmp_path / "consumerFilter.json").exists()
    registered(tmp_path, clock)
    (tmp_path / "consumerFilter.json").unlink()
    file = opened(tmp_path, clock)
    file.persist()
    assert not (tmp_path / "consumerFilter.json").exists()


def test_a_filter_is_removed_after_a_day_without_consumers(run: Any, tmp_path: Path) -> None:
    clock = FakeClock()
    file = registered(tmp_path, clock)
    file.table.unregister("G")
    clock.advance(DEAD_KEPT_MS - 1)
    run(file.save())
    assert len(list(file.table)) == 1
    clock.advance(1)
    run(file.save())
    assert json.loads((tmp_path / "consumerFilter.json").read_text())["filterDataByTopic"] == {}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"filterDataByTopic":5}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{}}}}}',
    ],
)
def test_a_file_that_cannot_be_used_is_replaced(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "consumerFilter.json").write_text(text)
    assert list(opened(tmp_path, FakeClock()).table) == []
    assert "registered again by heartbeats" in caplog.text


def test_a_file_with_too_many_filters_is_cut(tmp_path: Path) -> None:
    clock = FakeClock()
    registered(tmp_path, clock)
    path = tmp_path / "consumerFilter.json"
    file = FilterFile(ConfigFile(path), FilterTable(clock.now_ms, filters_max=0), clock)
    file.load()
    assert list(file.table) == []
