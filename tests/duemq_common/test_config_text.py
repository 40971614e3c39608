"""Parsing of Java properties texts."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.config_text import (
    FILE_BYTES_MAX,
    Properties,
    parse_properties,
    read_properties,
    unknown_keys,
)
from duemq_common.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1"}),
        ("a: 1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=\t1", {"a": "1"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==1", {"a": "=1"}),
        ("a=b=c", {"a": "b=c"}),
        ("# a=1\n! b=2\nc=3", {"c": "3"}),
        ("  # indented comment\nc=3", {"c": "3"}),
        ("c=3 # not a comment", {"c": "3 # not a comment"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1 \\\n   2", {"a": "1 2"}),
        ("a=1 \\\n   2 \\\n 3\nb=4", {"a": "1 2 3", "b": "4"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=1\\", {"a": "1"}),
        ("# comment \\\nb=2", {"b": "2"}),
        (r"path=C\:\\store", {"path": r"C:\store"}),
        (r"a\ b=c", {"a b": "c"}),
        (r"a\=b=c", {"a=b": "c"}),
        (r"a=x\ty", {"a": "x\ty"}),
        (r"a=\u00e9", {"a": "é"}),
        (r"a=\q", {"a": "q"}),
        ("\ufeffa=1", {"a": "1"}),
        ("messageDelayLevel=1s 5s", {"messageDelayLevel": "1s 5s"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert dict(parse_properties(text)) == expected


@pytest.mark.parametrize(("text", "line"), [("\n\na=1", 3), ("b=1\\\n2\na=1", 3), ("a=0\na=1", 2)])
def test_line_of_a_key(text: str, line: int) -> None:
    assert parse_properties(text, source="broker.conf").source("a") == f"broker.conf line {line}"


def test_a_continued_line_has_the_number_of_its_first() -> None:
    assert parse_properties("a=1\\\n2").source("a") == "line 1"


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\uXYZW", "a=\\u"])
def test_a_malformed_escape_is_reported_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"f line 1.*four hexadecimal digits"):
        parse_properties(text, source="f")


@given(st.text(max_size=300))
def test_no_text_crashes_the_parser(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_properties(text)


def test_a_file_that_is_not_utf8_is_read_as_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerName=caf\xe9")
    assert read_properties(path)["brokerName"] == "café"


@pytest.mark.parametrize("kind", ["missing", "directory", "too long"])
def test_an_unreadable_file_is_a_clear_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "broker.conf"
    if kind == "directory":
        path.mkdir()
    elif kind == "too long":
        path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=r"broker\.conf"):
        read_properties(path)


def test_merged_values_have_priority_and_keep_their_source() -> None:
    merged = parse_properties("a=1\nb=2", source="f").merged({"a": "9"}, "command line")
    assert (merged["a"], merged.source("a")) == ("9", "command line")
    assert (merged["b"], merged.source("b")) == ("2", "f line 2")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("brokername", "brokerName"),
        ("listenPorts", "listenPort"),
        ("flushDiskTyp", "flushDiskType"),
        ("zzz", None),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest(key: str, nearest: str | None) -> None:
    known = ["brokerName", "listenPort", "flushDiskType"]
    [found] = unknown_keys(Properties({key: "1"}, {key: "f line 1"}), known)
    assert found.nearest == nearest
    assert f"unknown key {key} (f line 1), ignored" in str(found)
