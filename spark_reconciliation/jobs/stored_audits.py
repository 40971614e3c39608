"""Audits in the ledger of a broker's store, in pages: READ_AUDITS (9021).

    header    audit: empty for the list; cursor: empty for the first page
        response  0 + {"audits": [...], "cursor": ...}, newest first
                  0 + {"audit": ..., "findings": [...], "cursor": ...}

A thread reads the ledger, which may be a database of another machine; one read runs at a time. A
request that waits longer than its client is refused: pages that are shown repeat it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.ledger.errors import LedgerError, LedgerUnavailable
from duemq_common.request import Request, Response

if TYPE_CHECKING:  # the broker starts without SQLAlchemy
    from spark_reconciliation.jobs.audit_ledger import AuditLedger, AuditRecord

RUNS_MAX: Final = 100
FINDINGS_MAX: Final = 100
WAIT_S_MAX: Final = 2.0  # for another read; clients wait 3 s for a response
NO_LEDGER: Final[Mapping[str, object]] = {"audits": [], "cursor": None}


class StoredAudits:
    """Reader of the audits of one store.

    Args:
        store: Folder of the store.
        url: Returns the URL of its ledger; empty: that of the store.
    """

    def __init__(self, store: str, url: Callable[[], str]) -> None:
        self._store, self._url = store, url
        self._turn = asyncio.Lock()

    async def read(self, request: Request) -> Response:
        """Return a page of the audits, or an audit with a page of its findings.

        Raises:
            RequestError: The cursor is malformed, the ledger cannot be used, or it does not have
                the audit.
        """
        fields = request.fields
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await self._turn.acquire()
        except TimeoutError:
            text = (
                f"another read of the ledger of audits takes longer than {WAIT_S_MAX:g} s: check "
                "the database of reconcileLedgerUrl"
            )
            raise RequestError(ResponseCode.SYSTEM_ERROR, text) from None
        try:
            page = await asyncio.to_thread(
                audits_page,
                self._store,
                self._url(),
                fields.get("audit", ""),
                fields.get("cursor", ""),
            )
        except ValueError as error:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"the cursor is malformed: {error}"
            ) from error
        except LedgerError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        finally:
            self._turn.release()
        return Response(body=json.dumps(page).encode())


def audits_page(store: str, url: str, audit_id: str, cursor: str) -> Mapping[str, object]:
    """Return a page of the audits of a store; none without a ledger.

    Args:
        audit_id: Audit whose findings are read; empty: the audits are.
        cursor: Cursor of the page before; empty: the first page.
    Raises:
        LedgerError: The ledger cannot be used.
        RequestError: The ledger does not have the audit.
        ValueError: The cursor is malformed.
    """
    from duemq_common.ledger.engine import default_url
    from spark_reconciliation.jobs.audit_ledger import AuditLedger

    try:
        ledger = AuditLedger.open_existing(url or default_url(store))
    except LedgerUnavailable:
        if url:
            raise
        if audit_id:
            raise _absent(audit_id) from None
        return NO_LEDGER
    try:
        if audit_id:
            return _findings(ledger, audit_id, int(cursor or 0))
        return _runs(ledger, cursor)
    finally:
        ledger.close()


def _runs(ledger: AuditLedger, cursor: str) -> Mapping[str, object]:
    started_ms, _, audit_id = cursor.partition("_")
    before = (int(started_ms), audit_id) if cursor else None
    audits = ledger.audits(count_max=RUNS_MAX + 1, before=before)
    page = audits[:RUNS_MAX]
    following = f"{page[-1].started_ms}_{page[-1].audit_id}" if len(audits) > RUNS_MAX else None
    return {"audits": list(map(_plain, page)), "cursor": following}


def _findings(ledger: AuditLedger, audit_id: str, first: int) -> Mapping[str, object]:
    audit = ledger.audit(audit_id)
    if audit is None:
        raise _absent(audit_id)
    findings = ledger.findings(audit_id, first=first, count_max=FINDINGS_MAX + 1)
    has_more = findings is not None and len(findings) > FINDINGS_MAX
    return {
        "audit": _plain(audit),
        "findings": None if findings is None else findings[:FINDINGS_MAX],
        "cursor": str(first + FINDINGS_MAX) if has_more else None,
    }


def _plain(audit: AuditRecord) -> dict[str, object]:
    plain = asdict(audit)
    del plain["findings"]
    return plain


def _absent(audit_id: str) -> RequestError:
    return RequestError(
        ResponseCode.QUERY_NOT_FOUND, f"the ledger of the store has no audit {audit_id}"
    )
