"""Lines of the audit log: one JSON object each, and the rate of refusals."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from duemq.auth.audit import (
    BURST_LINES,
    ENTRIES_MAX,
    LINES_PER_S,
    PAGE_MAX,
    TEXT_CHARACTERS_MAX,
    AuditEntry,
    AuditLog,
)

ENTRY = AuditEntry("alice", "10.0.0.7:5012", 310, "Topic:orders", "Pub", "no matched policies.")
CHANGE = AuditEntry("root", "127.0.0.1:4711", 3001, "Cluster:C", "Update", account="bob")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [json.loads(record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture
def now_ms(caplog: pytest.LogCaptureFixture) -> list[int]:
    caplog.set_level(logging.INFO, logger="duemq.audit")
    return [0]


def test_a_line_names_user_address_code_resource_and_reason(
    now_ms: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditLog(lambda: now_ms[0])
    audit.refused(ENTRY)
    audit.allowed([CHANGE])
    assert lines(caplog) == [
        {
            "event": "refused",
            "user": "alice",
            "from": "10.0.0.7:5012",
            "code": 310,
            "resource": "Topic:orders",
            "action": "Pub",
            "why": "no matched policies.",
        },
        {
            "event": "allowed",
            "user": "root",
            "from": "127.0.0.1:4711",
            "code": 3001,
            "resource": "Cluster:C",
            "action": "Update",
            "account": "bob",
        },
    ]


def test_text_of_clients_is_escaped_and_truncated(
    now_ms: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    hostile = 'x"}\n{"event":"allowed\x1b[31m\u2028' + "é" * 1_000
    AuditLog(lambda: now_ms[0]).refused(AuditEntry(hostile, "::1:1", 10, hostile, "", hostile))
    text = caplog.records[0].getMessage()
    assert text.isascii()
    assert text.isprintable()
    (line,) = lines(caplog)
    for key in ("user", "resource", "why"):
        assert line[key] == hostile[:TEXT_CHARACTERS_MAX] + "..."


@pytest.mark.parametrize("next_line", ["refused", "allowed"])
def test_refusals_above_the_rate_are_counted_in_the_next_line(
    now_ms: list[int], caplog: pytest.LogCaptureFixture, next_line: str
) -> None:
    audit = AuditLog(lambda: now_ms[0])
    for _ in range(BURST_LINES + 7):
        audit.refused(ENTRY)
    assert len(lines(caplog)) == BURST_LINES
    if next_line == "refused":
        now_ms[0] += 1_000 // LINES_PER_S
        audit.refused(ENTRY)
    else:
        audit.allowed([CHANGE])
    assert [(line["event"], line["leftOut"]) for line in lines(caplog)] == [(next_line, 7)]
    audit.allowed([CHANGE])
    assert "leftOut" not in lines(caplog)[0]
    assert audit.refused_count == BURST_LINES + 7 + (next_line == "refused")


def test_entries_in_memory_are_bounded_and_refusals_hide_no_change(now_ms: list[int]) -> None:
    audit = AuditLog(lambda: now_ms[0])
    audit.allowed([CHANGE])(0)
    for _ in range(ENTRIES_MAX + 5):
        audit.refused(ENTRY)
    shown: list[dict[str, Any]] = []
    before = ""
    while before != "None":
        page: dict[str, Any] = audit.view({"before": before, "count": "x"})
        assert len(page["entries"]) <= PAGE_MAX
        shown += page["entries"]
        before = str(page["before"])
    assert len(shown) == ENTRIES_MAX + 1
    assert [entry["number"] for entry in shown] == sorted(
        (entry["number"] for entry in shown), reverse=True
    )
    assert (shown[-1]["user"], shown[-1]["result"]) == ("root", 0)


def test_entries_in_memory_do_not_keep_the_long_texts_of_clients(now_ms: list[int]) -> None:
    audit, text = AuditLog(lambda: now_ms[0]), "x" * 100_000
    references = sys.getrefcount(text)
    audit.refused(AuditEntry(text, "::1:1", 10, text, "", text, text))
    audit.allowed([AuditEntry(text, "::1:1", 17, text, "Update", account=text)])
    assert sys.getrefcount(text) == references
    page: dict[str, Any] = audit.view({})
    assert {entry["user"] for entry in page["entries"]} == {"x" * TEXT_CHARACTERS_MAX + "..."}
