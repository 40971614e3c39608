"""A table and its latest changes: what a start reads after a kill at any time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.registry import table_file
from duemq.registry.config_file import ConfigFile
from duemq.registry.table_file import TableFile, read_changes
from duemq.registry.topic_config import TopicConfig
from duemq_common.data_version import DataVersion

MEMBER = "topicConfigTable"
Table = dict[str, TopicConfig]


def row(name: str, perm: int = 6) -> TopicConfig:
    return TopicConfig(name=name, perm=perm)


def version(counter: int) -> DataVersion:
    return DataVersion(counter, counter * 10)


def new(root: Path) -> TableFile:
    return TableFile(ConfigFile(root / "topics.json"), MEMBER)


def read(root: Path) -> tuple[DataVersion, dict[str, Any]]:
    """Return version and permissions as a start reads them."""
    found = new(root).load(dict) or {MEMBER: {}}
    perms = {name: each["perm"] for name, each in found[MEMBER].items()}  # type: ignore[attr-defined]
    return DataVersion.from_json(found.get("dataVersion")), perms


def full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "full")


def started(root: Path, **table: int) -> TableFile:
    file = new(root)
    file.write({}, {name: row(name, perm) for name, perm in table.items()}, version(1))
    return file


@pytest.mark.finding("E8")
def test_a_change_costs_a_line_and_a_start_reads_it(tmp_path: Path) -> None:
    file = started(tmp_path, a=6)
    before = file.path.read_bytes()
    file.append({"b": row("b")}, version(2))
    file.append({"a": row("a", 4), "c": row("c")}, version(3))
    assert file.path.read_bytes() == before
    assert len(list(read_changes(file.changes_path))) == 2
    assert read(tmp_path) == (version(3), {"a": 4, "b": 6, "c": 6})


def test_writing_the_whole_table_removes_the_lines(tmp_path: Path) -> None:
    file = started(tmp_path, a=6)
    file.append({"b": row("b")}, version(2))
    file.write({}, {"a": row("a")}, version(3))
    assert not file.has_changes
    assert read(tmp_path) == (version(3), {"a": 6})


def test_a_kill_between_the_table_and_its_lines_brings_nothing_back(tmp_path: Path) -> None:
    file = started(tmp_path, a=6)
    file.append({"b": row("b")}, version(2))
    lines = file.changes_path.read_bytes()
    file.write({}, {"a": row("a", 4)}, version(2))
    file.changes_path.write_bytes(lines)
    assert read(tmp_path) == (version(2), {"a": 4})


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("killed", ["before the table", "before its lines"])
def test_a_deleted_row_stays_deleted_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str, restarted: bool
) -> None:
    """The lines exist until they are deleted, and after a power cut once more."""

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    file = started(tmp_path, a=6)
    file.append({"b": row("b")}, version(2))
    if restarted:
        file = new(tmp_path)
        file.load(dict)
    with monkeypatch.context() as patch:
        if killed == "before the table":
            patch.setattr(ConfigFile, "write", kill)
        else:
            patch.setattr(TableFile, "_delete_changes", kill)
        with pytest.raises(KeyboardInterrupt):
            file.write({}, {"a": row("a")}, version(3))
    is_deleted = killed == "before its lines"
    deleted, both = (version(3), {"a": 6}), (version(2), {"a": 6, "b": 6})
    assert read(tmp_path) == (deleted if is_deleted else both)
    again = new(tmp_path)
    again.load(dict)
    again.write({}, {"c": row("c")}, version(4))
    again.append({"d": row("d")}, version(5))
    assert read(tmp_path) == (version(5), {"c": 6, "d": 6})


def test_a_line_that_cannot_be_added_does_not_prevent_a_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = started(tmp_path, a=6)
    file.append({"b": row("b")}, version(2))
    monkeypatch.setattr(os, "fdatasync", full)
    file.write({}, {"a": row("a")}, version(3))
    assert read(tmp_path) == (version(3), {"a": 6})


def test_a_table_that_something_else_wrote_keeps_its_rows(tmp_path: Path) -> None:
    file = started(tmp_path, a=6)
    file.append({"b": row("b"), "a": row("a", 2)}, version(2))
    lines = file.changes_path.read_bytes()
    other = TableFile(ConfigFile(tmp_path / "topics.json"), MEMBER)
    other.write({}, {"a": row("a", 4)}, DataVersion(2, 999))
    file.changes_path.write_bytes(lines)
    assert read(tmp_path) == (DataVersion(2, 999), {"a": 4, "b": 6})


def test_a_line_cut_anywhere_is_not_read(tmp_path: Path) -> None:
    file = started(tmp_path, a=6)
    file.append({"b": row("b")}, version(2))
    whole = file.changes_path.read_bytes()
    file.append({"c": row("c")}, version(3))
    both = file.changes_path.read_bytes()
    for end in range(len(whole), len(both)):
        file.changes_path.write_bytes(both[:end])
        assert read(tmp_path) == (version(2), {"a": 6, "b": 6})


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_not_read(tmp_path_factory: Any, at: int, bit: int) -> None:
    root = tmp_path_factory.mktemp("flip")
    file = started(root, a=6)
    file.append({"b": row("b")}, version(2))
    data = bytearray(file.changes_path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    file.changes_path.write_bytes(data)
    assert read(root) in ((version(1), {"a": 6}), (version(2), {"a": 6, "b": 6}))


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"00000000 {}", b"\xff\xfe", b"29b2d8a1 null", b"7ca6f3d8 {}"],
)
def test_junk_is_no_change(tmp_path: Path, line: bytes) -> None:
    file = started(tmp_path, a=6)
    file.changes_path.write_bytes(line + b"\n")
    assert read(tmp_path) == (version(1), {"a": 6})


def test_after_a_refused_line_the_whole_table_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = started(tmp_path, a=6)
    file.append({"b": row("b")}, version(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(OSError, match="full"):
            file.append({"c": row("c")}, version(3))
    assert file.needs_rewrite
    assert read(tmp_path) == (version(2), {"a": 6, "b": 6})


def test_lines_are_kept_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(table_file, "CHANGES_BYTES_MIN", 600)
    file = started(tmp_path)
    counter = 1
    while not file.needs_rewrite:
        counter += 1
        file.append({f"t{counter}": row("t")}, version(counter))
    assert 2 < counter < 10


def test_a_small_table_is_written_whole_at_each_change(tmp_path: Path) -> None:
    file = started(tmp_path, a=6)
    assert file.needs_rewrite
    large = {f"topic-{number:04d}": 6 for number in range(2_000)}
    assert not started(tmp_path, **large).needs_rewrite


def test_a_start_with_lines_writes_the_whole_table_next(tmp_path: Path) -> None:
    started(tmp_path, a=6).append({"b": row("b")}, version(2))
    file = new(tmp_path)
    file.load(dict)
    assert file.has_changes
    assert file.needs_rewrite


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([2, 4, 6]), st.sampled_from("lwk")),
    max_size=12,
)


@pytest.mark.sampled
@pytest.mark.parametrize("whole_bytes_max", [0, table_file.WHOLE_BYTES_MAX])
@given(STEPS)
def test_a_kill_at_any_step_loses_nothing(
    tmp_path_factory: Any, whole_bytes_max: int, steps: list[tuple[str, int, str]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_file, "WHOLE_BYTES_MAX", whole_bytes_max)
        _kill_at_any_step(tmp_path_factory, steps)


def _kill_at_any_step(tmp_path_factory: Any, steps: list[tuple[str, int, str]]) -> None:
    root = tmp_path_factory.mktemp("model")
    table: Table = {}
    file = started(root)
    for counter, (name, perm, step) in enumerate(steps, start=2):
        table[name] = row(name, perm)
        if step == "k":  # killed: a new process reads what there is
            file = new(root)
            file.load(dict)
        if step == "w" or file.needs_rewrite:
            file.write({}, dict(table), version(counter))
        else:
            file.append({name: table[name]}, version(counter))
        perms = {name: each.perm for name, each in table.items()}
        assert read(root) == (version(counter), perms)
