"""No client writes a line of the log, or to the terminal of its reader."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.cli.serve import LOG_FORMAT
from duemq_common.log_lines import (
    MESSAGE_CHARS_MAX,
    FailureLog,
    JsonFormatter,
    OneLineFormatter,
)

FORMATTER = OneLineFormatter(LOG_FORMAT)


def line(*arguments: object, exc_info: object = None) -> str:
    record = logging.LogRecord(
        "x",
        logging.INFO,
        "f",
        1,
        "%s" * len(arguments),
        arguments,
        exc_info,
    )
    return FORMATTER.format(record)


@pytest.mark.finding("E8")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nINJECTED", r"a\nINJECTED"),
        ("a\r\x1b[2J\x07", r"a\r\x1b[2J\x07"),
        ("a\x9b1m\u2028b\u202e", r"a\x9b1m\u2028b\u202e"),
        ("\ud800", r"\ud800"),
        ("über 日本 ' \\ \"", "über 日本 ' \\ \""),
    ],
)
def test_control_characters_are_escapes(text: str, shown: str) -> None:
    assert line(text).endswith(f"x: {shown}")


@pytest.mark.finding("E8")
@given(st.text())
def test_a_message_is_one_line(text: str) -> None:
    assert len(line(text).splitlines()) == 1


def test_a_message_is_bounded() -> None:
    assert len(line("x" * (1 << 20))) < MESSAGE_CHARS_MAX + 100


def test_a_traceback_keeps_its_lines_and_forges_none() -> None:
    try:
        raise ValueError("a\n2026-11-22 00:00:00,000 INFO    x: INJECTED \x1b[2J")
    except ValueError:
        lines = line("failed", exc_info=sys.exc_info()).splitlines()
    assert len(lines) > 3
    assert all(each.startswith("  | ") for each in lines[1:])
    assert "\x1b" not in "".join(lines)


def test_a_record_is_one_json_object() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "%s\n\u2028", ("é",), sys.exc_info())
    record.created, record.phase = 1.5, "scan"
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert "\n" not in text
    fields = json.loads(text)
    assert "ValueError: a\nb" in fields.pop("traceback")
    assert fields == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "ERROR",
        "logger": "x",
        "message": "é\n\u2028",
        "phase": "scan",
    }


def test_a_reason_has_one_line_until_it_changes_or_the_attempt_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailureLog(logging.getLogger("test"))
    for subject, reason in (("a", "away"), ("a", "away"), ("b", "away"), ("a", "busy")):
        failures.failed(subject, OSError(reason), "no heartbeat to %s", subject)
    failures.succeeded("a")
    failures.succeeded("a")
    failures.failed("a", OSError("busy"), "no heartbeat to %s", "a")
    assert caplog.messages == [
        "no heartbeat to a: away",
        "no heartbeat to b: away",
        "no heartbeat to a: busy",
        "no heartbeat to a: busy",
    ]
