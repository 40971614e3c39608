"""The how-to of audits lists each verdict, and which are findings."""

from __future__ import annotations

import re
from pathlib import Path

from spark_reconciliation.audit.verdicts import CLEAN, VERDICTS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "audit.md"
ROW = re.compile(r"^\| ([a-z_, ]+) \| [^|]+ \|( yes)? \|$", re.M)


def test_the_page_lists_each_verdict() -> None:
    rows = [
        (name, bool(finding))
        for names, finding in ROW.findall(PAGE.read_text())
        for name in names.split(", ")
    ]
    assert sorted(rows) == sorted((name, name not in CLEAN) for name in VERDICTS)
