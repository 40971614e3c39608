"""Recent audits of a broker: what the last read of the ledger returned, and findings in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from duemq_common.ledger.errors import LedgerUnavailable
from spark_reconciliation.jobs.child_process import Result
from spark_reconciliation.jobs.recent_audits import WITH_FINDINGS_MAX, RecentAudits, audits_of


def test_a_view_returns_the_last_read_and_starts_the_next_one() -> None:
    async def main() -> None:
        results: list[Any] = [[{"audit_id": "a"}], LedgerUnavailable("ledger", "away", "look")]

        def read() -> list[dict[str, Any]]:
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            return list(result)

        recent = RecentAudits(read)
        assert recent.view() == {"audits": None, "failure": ""}
        await recent.close()
        assert recent.view() == {"audits": [{"audit_id": "a"}], "failure": ""}
        await recent.close()
        results.append([])
        assert "away" in str(recent.view()["failure"])
        await recent.close()

    asyncio.run(main())


def test_findings_of_the_newest_audits_are_in_memory() -> None:
    recent = RecentAudits(list)
    for number in range(WITH_FINDINGS_MAX + 1):
        offenders: list[dict[str, object]] = [{"verdict": "lost", "root": number}]
        recent.add(Result(exit_code=1, audit_id=f"audit-{number}", offenders=offenders))
    assert recent.findings_view("audit-0") == {"findings": None}
    assert recent.findings_view("audit-1") == {"findings": [{"verdict": "lost", "root": 1}]}


def test_a_store_without_a_ledger_has_no_audits(tmp_path: Path) -> None:
    assert audits_of(str(tmp_path), "") == []
