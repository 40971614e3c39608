"""Configuration key messageDelayLevel and its history."""

from __future__ import annotations

import pytest

from duemq_common.errors import ConfigError
from duemq_common.json_dialect import loads
from schedule_service.config import ScheduleConfig
from schedule_service.levels import (
    HISTORY_MAX,
    LevelHistory,
    LevelText,
    decode_history,
    encode_history,
    longest_delays,
)


@pytest.mark.parametrize(
    ("one", "other", "longest"),
    [
        ("1s 9s", "2s 5s", "2s 9s"),
        ("60s", "1m", "60s"),
        ("1s 5s", "1s 2s 3s 9s", "1s 5s 5s 9s"),  # a level above the last one has its delay
        ("1s 2s 3s 9s", "1s 5s", "1s 5s 5s 9s"),
    ],
)
def test_the_longer_delay_of_each_level(one: str, other: str, longest: str) -> None:
    assert longest_delays(one, other) == longest


def test_the_section_refuses_bad_levels() -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        ScheduleConfig(levels="1s nonsense")


def history(*rows: tuple[int, str]) -> LevelHistory:
    return LevelHistory([LevelText(offset, text) for offset, text in rows])


@pytest.mark.parametrize(
    ("phys_offset", "level", "delay_ms"),
    [(0, 1, 1_000), (99, 1, 1_000), (100, 1, 7_000), (100, 2, 7_000), (50, 9, 5_000)],
)
def test_a_record_has_the_delay_of_its_time(phys_offset: int, level: int, delay_ms: int) -> None:
    assert history((0, "1s 5s"), (100, "7s")).delay_ms(phys_offset, level) == delay_ms


def test_a_change_applies_from_the_end_of_the_log() -> None:
    changed = history((0, "1s")).changed("2s", 500)
    assert [(p.from_offset, p.text) for p in changed.texts] == [(0, "1s"), (500, "2s")]
    again = changed.changed("3s", 500)
    assert [(p.from_offset, p.text) for p in again.texts] == [(0, "1s"), (500, "3s")]
    assert history((0, "1s")).changed("2s", 0).text == "2s"
    assert again.delays_ms.tolist() == [0, 3_000]


def test_a_bad_change_changes_nothing() -> None:
    before = history((0, "1s"))
    with pytest.raises(ConfigError):
        before.changed("x", 10)
    assert before.text == "1s"


def test_changes_are_limited() -> None:
    full = history(*((n, "1s") for n in range(HISTORY_MAX)))
    with pytest.raises(ConfigError, match="1000 times"):
        full.changed("2s", HISTORY_MAX + 1)


@pytest.mark.parametrize(
    ("log_min", "log_end", "offsets"),
    [(0, 900, [0, 100, 200]), (150, 900, [100, 200]), (200, 900, [200]), (0, 150, [0, 100, 150])],
)
def test_unused_tables_are_removed(log_min: int, log_end: int, offsets: list[int]) -> None:
    kept = history((0, "1s"), (100, "2s"), (200, "3s")).trimmed(log_min, log_end)
    assert [p.from_offset for p in kept.texts] == offsets
    assert kept.text == "3s"


def test_replace_changes_the_tables_of_all_users() -> None:
    mine = history((0, "1s"))
    tables = mine.tables
    mine.replace(history((0, "1s"), (10, "2s")))
    assert [table.from_offset for table in tables] == [0, 10]


def test_file_round_trip() -> None:
    text = encode_history(history((0, "1s"), (10, "2s 3s")), {1: 4, 18: 7})
    found, adopted, _ = decode_history(loads(text))
    assert [(p.from_offset, p.text) for p in found.texts] == [(0, "1s"), (10, "2s 3s")]
    assert adopted == {1: 4, 18: 7}


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"adopted":{},"history":[]}',
        '{"adopted":{},"history":[{"fromOffset":0}]}',
        '{"adopted":{},"history":[{"fromOffset":0,"levels":"x"}]}',
    ],
)
def test_a_damaged_file_raises(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        decode_history(loads(text))
