"""Delays of levels from the stores' own files, separate for each store."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_reconciliation.scan.levels import stored_levels_ms

OURS = '{"adopted":{},"history":[%s]}'
ONE = '{"fromOffset":0,"levels":"2s 4s"}'
LATER = '{"fromOffset":9,"levels":"1s 1m"}'


def store(root: Path, name: str, text: str | None, backup: str | None = None) -> str:
    """Return a store whose delayLevels.json has this text; without the file for None."""
    config = root / name / "config"
    config.mkdir(parents=True)
    for file, expected in (("delayLevels.json", text), ("delayLevels.json.bak", backup)):
        if expected is not None:
            (config / file).write_text(expected)
    return str(root / name)


def test_the_newest_levels_apply(tmp_path: Path) -> None:
    assert stored_levels_ms([store(tmp_path, "a", OURS % ONE)]) == {(2_000, 4_000): [0]}
    both = store(tmp_path, "b", OURS % f"{ONE},{LATER}")
    assert stored_levels_ms([both]) == {(1_000, 60_000): [0]}


def test_a_store_without_levels_uses_those_of_others(tmp_path: Path) -> None:
    silent, reported = store(tmp_path, "a", None), store(tmp_path, "b", OURS % ONE)
    assert stored_levels_ms([silent]) == {}
    assert sorted(stored_levels_ms([silent, reported])[(2_000, 4_000)]) == [0, 1]


def test_stores_have_their_own_levels(tmp_path: Path) -> None:
    reported = (("a", OURS % ONE), ("b", OURS % LATER), ("c", OURS % ONE), ("d", None))
    stores = [store(tmp_path, name, text) for name, text in reported]
    assert stored_levels_ms(stores) == {(2_000, 4_000): [0, 2], (1_000, 60_000): [1]}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"history":[]}', OURS % '{"levels":"soon"}'])
def test_other_files_have_no_levels(tmp_path: Path, text: str) -> None:
    assert stored_levels_ms([store(tmp_path, "a", text)]) == {}


def test_a_torn_file_has_its_backup(tmp_path: Path) -> None:
    assert stored_levels_ms([store(tmp_path, "a", '{"hist', OURS % ONE)]) == {(2_000, 4_000): [0]}
