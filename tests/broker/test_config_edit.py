"""Changes to a configuration file keep everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config_edit import edit_file, edit_text
from message_store.config_text import parse_properties


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
