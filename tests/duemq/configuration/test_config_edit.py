"""Changes to a configuration file keep everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.configuration.config_edit import FileEdit, edit_text
from duemq_common.config_text import FILE_BYTES_MAX, parse_properties
from duemq_common.errors import ConfigError


def edit_file(path: Path, changes: dict[str, str]) -> None:
    FileEdit.prepare(path, changes).commit()


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("a=1\n", {"a": "2"}, "a = 2\n"),
        ("# why\na=1\nb=2\n", {"a": "9"}, "# why\na = 9\nb=2\n"),
        ("a=1\n", {"b": "2"}, "a=1\nb = 2\n"),
        ("", {"b": "2"}, "b = 2\n"),
        ("a=1 \\\n  2\nb=3\n", {"a": "9"}, "a = 9\nb=3\n"),
        ("a=1\na=2\n", {"a": "9"}, "a = 9\n"),
        ("b=3\na=1 \\\n\n# c\n", {"a": "9"}, "b=3\na = 9\n# c\n"),
        ("a=\\", {"b": "1"}, "a=\nb = 1\n"),
        ("a=1", {"a": r"C:\x"}, "a = C:\\\\x\n"),
        ("a=1\n\n# end\n", {"a": "2"}, "a = 2\n\n# end\n"),
    ],
)
def test_edits(before: str, changes: dict[str, str], after: str) -> None:
    assert edit_text(before, changes) == after


KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"])).map(
    str.strip
)
LINES = st.lists(st.tuples(KEYS, st.sampled_from(["1", "1 \\\n 2", "\\", "x\\\\"])), max_size=6)


@given(LINES, st.dictionaries(KEYS, VALUES, min_size=1))
def test_what_was_changed_is_read_back(
    lines: list[tuple[str, str]], changes: dict[str, str]
) -> None:
    text = "\n".join(f"{key}={value}" for key, value in lines)
    before = dict(parse_properties(text))
    assert dict(parse_properties(edit_text(text, changes))) == before | changes


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    edit_file(path, {"a": "2"})
    assert path.read_text() == "a = 2\n"
    assert [p.name for p in tmp_path.iterdir()] == ["broker.conf"]


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.finding("A14")
@given(st.dictionaries(ANY_TEXT.filter(bool), ANY_TEXT, min_size=1, max_size=4))
def test_keys_and_values_are_escaped(changes: dict[str, str]) -> None:
    text = edit_text("before=1\n", changes)
    text.encode("latin-1")  # whatever the rest of the file is in
    found = dict(parse_properties(text))
    assert found == {"before": "1"} | {key: value.strip() for key, value in changes.items()}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_file_keeps_its_encoding_its_mode_and_its_link(tmp_path: Path, encoding: str) -> None:
    path, link = tmp_path / "real.conf", tmp_path / "broker.conf"
    path.write_bytes("# über\na=1\n".encode(encoding))
    path.chmod(0o600)
    link.symlink_to(path)
    edit_file(link, {"a": "ü"})
    assert path.read_bytes() == "# über\na = \\u00fc\n".encode(encoding)
    assert path.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()


def test_a_file_never_grows_beyond_what_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("a=1\n")
    with pytest.raises(ConfigError, match="longer than"):
        edit_file(path, {"b": "x" * FILE_BYTES_MAX})
    assert [p.name for p in tmp_path.iterdir()] == ["broker.conf"]
