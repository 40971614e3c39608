"""Audits in the ledger of a store: pages, findings, and ledgers that lack something."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.errors import RequestError
from duemq_common.ledger.engine import default_url
from duemq_common.ledger.identity import store_id
from duemq_common.ledger.ledger import Ledger
from duemq_common.ledger.location import LedgerLocation
from duemq_common.ledger.tables import AUDIT_FINDINGS
from duemq_common.request import Request
from spark_reconciliation.audit.summary import Summary
from spark_reconciliation.jobs import stored_audits
from spark_reconciliation.jobs.audit_ledger import AuditLedger, AuditRecord
from spark_reconciliation.jobs.outside import ProofSummary
from spark_reconciliation.jobs.run import AuditRequest, LedgerRow
from spark_reconciliation.jobs.stored_audits import StoredAudits, audits_page

AUDIT = AuditRecord(
    audit_id="a", started_ms=1, ended_ms=2, verdicts={"lost": 1}, findings=[{"verdict": "lost"}]
)


def location_in(store: Path) -> LedgerLocation:
    (store / "config").mkdir(exist_ok=True)
    return LedgerLocation(url=default_url(store), store_id="s", store_path=str(store))


def test_a_store_without_a_ledger_has_no_audits(tmp_path: Path) -> None:
    assert audits_page(str(tmp_path), "", "", "") == {"audits": [], "cursor": None}
    with pytest.raises(RequestError, match="no audit a"):
        audits_page(str(tmp_path), "", "a", "")


def test_a_ledger_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        stored = StoredAudits(str(tmp_path), lambda: f"sqlite:///{tmp_path}/absent")
        with pytest.raises(RequestError, match="no such file"):
            await stored.read(Request(RequestCode.READ_AUDITS, {}))

    asyncio.run(main())


def test_requests_do_not_queue_behind_a_database_that_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is shown repeats its request every few seconds."""
    responds = threading.Event()

    def page(*_: object) -> Mapping[str, object]:
        responds.wait()
        return stored_audits.NO_LEDGER

    monkeypatch.setattr(stored_audits, "audits_page", page)
    monkeypatch.setattr(stored_audits, "WAIT_S_MAX", 0)

    async def main() -> None:
        stored, request = StoredAudits(str(tmp_path), str), Request(RequestCode.READ_AUDITS, {})
        first = asyncio.create_task(stored.read(request))
        await asyncio.sleep(0)
        try:
            with pytest.raises(RequestError, match="another read of the ledger of audits takes"):
                await stored.read(request)
        finally:
            responds.set()
        assert (await first).code == 0
        monkeypatch.setattr(stored_audits, "WAIT_S_MAX", 60)
        assert (await stored.read(request)).code == 0

    asyncio.run(main())


def test_a_ledger_of_an_earlier_build_gets_findings_with_the_next_audit(tmp_path: Path) -> None:
    ledger = Ledger.open(location_in(tmp_path), now_ms=1)
    ledger.write([AUDIT])
    with ledger.engine.begin() as connection:
        AUDIT_FINDINGS.drop(connection)
    ledger.close()
    page = audits_page(str(tmp_path), "", "a", "")
    assert page["findings"] is None
    again = Ledger.open(location_in(tmp_path), now_ms=1)
    again.write([AUDIT])
    again.close()
    page = audits_page(str(tmp_path), "", "a", "")
    [finding] = cast("list[dict[str, object]]", page["findings"])
    assert finding["verdict"] == "lost"


def test_an_audit_writes_its_findings(tmp_path: Path) -> None:
    store_id(tmp_path / "config")
    request = AuditRequest(stores=(str(tmp_path),))
    row = LedgerRow.begin(request, "", clock=FakeClock(1_000), salt=b"ab", warn=pytest.fail)
    row.done(Summary({"lost": 1}, {}, [{"verdict": "lost", "why": "w", "due_ms": 7, "alike": 3}]))
    page = audits_page(str(tmp_path), "", row.audit_id, "")
    [finding] = cast("list[dict[str, object]]", page["findings"])
    assert (finding["why"], finding["due_ms"], finding["root"]) == ("w", 7, None)


def test_an_audit_writes_the_result_of_a_comparison(tmp_path: Path) -> None:
    store_id(tmp_path / "config")
    request = AuditRequest(stores=(str(tmp_path),))
    row = LedgerRow.begin(request, "", clock=FakeClock(1_000), salt=b"ab", warn=pytest.fail)
    proof = ProofSummary("sent", {"never_accepted": 2, "ok": 1}, skipped=0)
    assert row.done(Summary({"ok": 1}, {}, outside=(proof,))) == 1
    ledger = AuditLedger.open_existing(default_url(str(tmp_path)))
    [record] = ledger.audits()
    ledger.close()
    assert record.why == "2 names differ from the tables (0 of 1 messages have a finding)."
