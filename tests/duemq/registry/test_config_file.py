"""Config files: which of file and backup is read, and in what order snapshots are written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.registry.config_file import ConfigFile, sound_rows
from duemq_common import json_dialect
from duemq_common.errors import CorruptStore
from tests.support.bad_disk import BadDisk

GOOD, OTHER = '{"n":1}', '{"n":2}'


def number(data: dict[str, Any]) -> int:
    value = data.get("n")
    if not isinstance(value, int):
        raise ValueError(f"n is {value!r}")
    return value


@pytest.mark.parametrize(
    ("main", "backup", "expected"),
    [
        (GOOD, None, 1),
        (GOOD, OTHER, 1),
        (GOOD, "{", 1),
        (None, OTHER, 2),
        ("", OTHER, 2),
        ('{"n":', OTHER, 2),
        ('{"n":"x"}', OTHER, 2),
        ("[]", OTHER, 2),
        ("\x00" * 20, OTHER, 2),
        (None, None, None),
    ],
)
def test_the_backup_replaces_an_unreadable_file(
    tmp_path: Path, main: str | None, backup: str | None, expected: int | None
) -> None:
    for name, text in (("t.json", main), ("t.json.bak", backup)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert ConfigFile(tmp_path / "t.json").load(number) == expected


@pytest.mark.parametrize(
    ("main", "backup"),
    [("", None), ("{", None), ("{", "{"), ("", ""), (None, ""), ('{"n":"x"}', "[]")],
)
def test_data_that_cannot_be_read_is_an_error(
    tmp_path: Path, main: str | None, backup: str | None
) -> None:
    for name, text in (("t.json", main), ("t.json.bak", backup)):
        if text is not None:
            (tmp_path / name).write_text(text)
    state = "missing" if backup is None else "invalid too"
    text = rf"t\.json.*restore it from a copy \(t\.json\.bak is {state}\)"
    with pytest.raises(CorruptStore, match=text):
        ConfigFile(tmp_path / "t.json").load(number)


def test_using_the_backup_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t.json").write_text("{")
    (tmp_path / "t.json.bak").write_text(OTHER)
    with caplog.at_level(logging.WARNING):
        ConfigFile(tmp_path / "t.json").load(number)
    assert "t.json.bak is used" in caplog.text


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b'{"n":"\xff"}')
    with pytest.raises(CorruptStore):
        ConfigFile(tmp_path / "t.json").load(number)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path / "config" / "t.json")
    file.write({"n": 1})
    asyncio.run(file.save({"n": 2}))
    assert file.load(number) == 2
    assert json_dialect.loads((tmp_path / "config" / "t.json.bak").read_text()) == {"n": 1}


def test_an_older_snapshot_never_replaces_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ConfigFile(tmp_path / "t.json")

    async def both() -> None:
        first, second = file.save({"n": 1}), file.save({"n": 2})
        await asyncio.gather(second, first)  # whichever thread comes first

    asyncio.run(both())
    assert file.load(number) in (1, 2)
    release = asyncio.Event()

    async def held(function: Callable[..., None], *arguments: Any) -> None:
        await release.wait()
        function(*arguments)

    async def late() -> None:
        older = asyncio.create_task(file.save({"n": 99}))
        await asyncio.sleep(0)
        file.write({"n": 3})
        release.set()
        await older

    monkeypatch.setattr(asyncio, "to_thread", held)
    asyncio.run(late())
    assert file.load(number) == 3


@pytest.mark.finding("E4")
def test_an_unreadable_file_is_replaced_by_its_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.json").write_text('{"n": 2}')
    (tmp_path / "t.json.bak").write_text('{"n": 1}')
    BadDisk(monkeypatch).break_file(tmp_path / "t.json")
    assert ConfigFile(tmp_path / "t.json").load(number) == 1
    assert "it cannot be read" in caplog.text


@pytest.mark.finding("3D1")
@given(rows=st.dictionaries(st.text(max_size=3), st.none() | st.integers(), max_size=9))
def test_a_malformed_row_of_a_master_stops_no_other_row(rows: dict[str, int | None]) -> None:
    def read(value: object, name: str) -> int:
        if not isinstance(value, int):
            raise ValueError(f"{name}: {value} is no number")
        return value

    before = dict.fromkeys([*rows, "removed"], -1)
    found = sound_rows(rows, read, before)
    assert found == {name: -1 if value is None else value for name, value in rows.items()}
