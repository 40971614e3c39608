"""Apache's JSON: its own files, error texts for malformed ones, and atomic writes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common import json_dialect
from duemq_common.errors import CorruptStore
from duemq_common.json_dialect import (
    DEPTH_MAX,
    ObjectKey,
    backup_path,
    dumps,
    dumps_compact,
    load_config,
    loads,
    read_config,
    write_config,
)
from tests.support.bad_disk import BadDisk
from tests.support.golden_stores import STORES, GoldenStore, golden_store

DELAY_OFFSETS = '{\n\t"offsetTable":{1:100,2:200,18:1800\n\t}\n}'


@pytest.mark.parametrize("store", STORES, ids=str)
def test_apaches_files_are_written_with_the_same_bytes(store: GoldenStore) -> None:
    paths = sorted((golden_store(store.name) / "config").iterdir())
    files = [path for path in paths if path.read_bytes()[:1] == b"{"]
    assert len(files) > 5
    for path in files:
        text = path.read_text()
        write = dumps_compact if path.name.removesuffix(".bak").endswith("etrics") else dumps
        assert write(loads(text)) == text, path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"offsetTable": {1: 100, 2: 200, 18: 1800}}, DELAY_OFFSETS),
        ({"offsetTable": {}}, '{\n\t"offsetTable":{}\n}'),
        ({}, "{}"),
        ({"a": [1, "x"], "b": True}, '{\n\t"a":[1,"x"],\n\t"b":true\n}'),
        ({"t": {"u": {0: 5}}}, '{\n\t"t":{\n\t\t"u":{0:5\n\t\t}\n\t}\n}'),
        ({"ä": "延"}, '{\n\t"ä":"延"\n}'),
        ({"half": "\ud800"}, '{\n\t"half":"\\ud800"\n}'),
    ],
)
def test_pretty_text(value: dict[str, Any], text: str) -> None:
    assert dumps(value) == text
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"1":5}', {"1": 5}),
        ("{1:5}", {1: 5}),
        ("{-1:5}", {-1: 5}),
        (' { "a" : [ ] } ', {"a": []}),
        ("{word:1}", {"word": 1}),
        ('{{"b":"x","q":0}:7}', {ObjectKey('{"b":"x","q":0}'): 7}),
        ('{"a":1,"a":2}', {"a": 2}),
        ("3", 3),
        ('{"big":9223372036854775807}', {"big": (1 << 63) - 1}),
    ],
)
def test_tolerant_reading(text: str, value: int | dict[str | int, int | list[Any]]) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 1, column 1"),
        ("{", "line 1, column 2: expected a key"),
        ('{"a"', "line 1, column 5: expected ':'"),
        ('{"a":', "line 1, column 6: expected a value"),
        ('{"a":1', "line 1, column 7: expected ','"),
        ('{"a":1}x', "line 1, column 8: unexpected text after"),
        ('{\n\t"a":1,\n\t"b":oops\n}', "line 3, column 6: expected a value"),
        ('{"a":"open', "line 1, column 6: expected a value"),
        ("[1,,2]", "line 1, column 4: expected a value"),
        ("[1 2]", "line 1, column 4: expected ','"),
        ("{:1}", "line 1, column 2: expected a key"),
        ("\x00" * 40, "line 1, column 1: expected a value"),
        ("[" * (DEPTH_MAX + 2), f"column {DEPTH_MAX + 2}: nested deeper than {DEPTH_MAX}"),
        ("{" * 500, "nested deeper"),
        ('{"a":' + "9" * 5_000 + "}", "column 6: expected a value"),
    ],
)
def test_malformed_text_is_refused_with_its_position(text: str, where: str) -> None:
    with pytest.raises(ValueError, match=where.replace("(", r"\(")):
        loads(text)


def test_a_text_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_dialect, "TEXT_BYTES_MAX", 10)
    with pytest.raises(ValueError, match="the limit is 10"):
        loads("[" + "1," * 10 + "1]")


def read_or_refused(text: str) -> None:
    fault = ""
    try:
        loads(text)
    except ValueError as error:
        fault = str(error)
    assert not fault or "column" in fault


plain = st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=20)
keys = st.text(max_size=8) | st.integers(-(1 << 31), 1 << 62)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_written_values_are_read(
    value: int | dict[int | str, int | list[Any] | dict[str | int, Any] | None] | list[Any] | None,
) -> None:
    assert loads(dumps(value)) == value
    assert loads(dumps_compact(value)) == value
    assert dumps(value).encode()


@given(st.text(alphabet='{}[],:"\\ud1e+-. \n\tabn', max_size=60) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refused(text)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_a_golden_file_with_damage_is_read_or_refused(at: int, noise: bytes) -> None:
    path = golden_store("apache-5.3.3-clean") / "config" / "topics.json"
    data = path.read_bytes()
    at %= len(data)
    text = (data[:at] + noise + data[at + len(noise) :]).decode("utf-8", "replace")
    read_or_refused(text)


@given(values)
def test_json_of_other_writers_is_read(
    value: bool | dict[str | int, Any] | list[Any] | None,
) -> None:
    text = json.dumps(value)
    assert loads(text) == json.loads(text)


# -- files --------------------------------------------------------------------------------------


class SimulatedCrash(Exception):
    """The process ends here."""


def test_the_previous_text_is_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "config" / "x.json"
    for text in ("one", "two", "three"):
        write_config(path, text)
    assert path.read_text() == "three"
    assert backup_path(path).read_text() == "two"
    assert sorted(p.name for p in path.parent.iterdir()) == ["sums", "x.json", "x.json.bak"]


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert read_config(tmp_path / "x.json") is None
    assert load_config(tmp_path / "x.json", dict) is None


@pytest.mark.parametrize("broken", [None, b"", b"{torn", b"\xff\xfe\x00"])
def test_the_backup_replaces_an_unreadable_file(tmp_path: Path, broken: bytes | None) -> None:
    path = tmp_path / "x.json"
    backup_path(path).write_text('{"a":1}')
    if broken is not None:
        path.write_bytes(broken)
    assert load_config(path, dict) == {"a": 1}


def test_two_unreadable_files_are_an_error_with_the_action(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a":\n oops')
    backup_path(path).write_text("{")
    with pytest.raises(CorruptStore, match=r"x\.json.*line 2, column 2.*Restore one of them"):
        load_config(path, dict)


@pytest.mark.parametrize(
    "decode",
    [
        lambda value: value["gone"],
        lambda value: value.gone,
        lambda value: int("x"),
        lambda value: int(float("1e999")),
    ],
)
def test_a_failing_decoder_makes_the_file_invalid(
    tmp_path: Path, decode: Callable[..., Any]
) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(CorruptStore):
        load_config(path, decode)


CALLS = ("fsync", "link", "replace", "open")


def steps_of_a_write(path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int) -> int:
    """Write `new`, ending the process before step `stop_at`; return the number of steps."""
    made = 0

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: int | Path, **kwargs: object) -> int | None:
            nonlocal made
            if made == stop_at:
                raise SimulatedCrash
            made += 1
            return call(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(json_dialect.os, name, stepping(getattr(os, name)))  # type: ignore[attr-defined]
        try:
            write_config(path, '"new"')
        except SimulatedCrash:
            return -1
    return made


@pytest.mark.parametrize("main", [b'"old"', b"{torn"], ids=["whole", "torn"])
def test_a_write_interrupted_at_any_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: bytes
) -> None:
    before = tmp_path / "before"
    before.mkdir()
    (before / "x.json").write_bytes(main)
    (before / "x.json.bak").write_text('"older"')
    steps = 0
    while True:
        root = tmp_path / str(steps)
        shutil.copytree(before, root)
        made = steps_of_a_write(root / "x.json", monkeypatch, steps)
        expected = {"old", "new"} if main == b'"old"' else {"older", "new"}
        assert load_config(root / "x.json", str) in expected
        write_config(root / "x.json", '"after"')
        assert load_config(root / "x.json", str) == "after"
        if made >= 0:
            break
        steps += 1
    assert steps >= 5


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_config(path, '"old"')

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(json_dialect.os, "fsync", full)  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="No space"):
            write_config(path, '"new"')
    assert load_config(path, str) == "old"


def test_a_file_system_without_links_keeps_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(json_dialect.os, "link", refuse)  # type: ignore[attr-defined]
    path = tmp_path / "x.json"
    write_config(path, "one")
    write_config(path, "two")
    assert (path.read_text(), backup_path(path).read_text()) == ("two", "one")


def test_encoded_rows_are_embedded_unchanged() -> None:
    rows = {"a": {"x": 1, "y": {}}, "b": {"m": {1: 2}}, "c": {}}
    table = {"t": {name: json_dialect.written(row, 2) for name, row in rows.items()}}
    assert json_dialect.dumps(table) == json_dialect.dumps({"t": rows})


@pytest.mark.finding("E4")
def test_an_unreadable_file_is_replaced_by_its_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    write_config(path, '"first"')
    write_config(path, '"second"')
    disk = BadDisk(monkeypatch)
    disk.break_file(path)
    assert load_config(path, str) == "first"
    assert read_config(path) == '"first"'
    disk.break_file(backup_path(path))
    with pytest.raises(CorruptStore, match="Input/output error"):
        load_config(path, str)
    with pytest.raises(OSError, match="Input/output error"):
        read_config(path)
