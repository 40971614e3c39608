"""The how-to of audits and the console have each verdict."""

from __future__ import annotations

import re
from pathlib import Path

from duemq.console.catalogue import TEXTS
from spark_reconciliation.audit.rules import CLEAN, VERDICTS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"
ROW = re.compile(r"^\| ([a-z_, ]+) \| [^|]+ \|( yes)? \|$", re.M)


def test_the_page_lists_each_verdict() -> None:
    rows = [
        (name, bool(finding))
        for names, finding in ROW.findall(PAGE.read_text())
        for name in names.split(", ")
    ]
    assert sorted(rows) == sorted((name, name not in CLEAN) for name in VERDICTS)


def test_the_console_has_a_text_for_each_verdict() -> None:
    prefix = "audit_verdict."
    keys = {key.removeprefix(prefix) for key in TEXTS if key.startswith(prefix)}
    assert keys == set(VERDICTS)
