"""Recent audits of a broker's store: those of its ledger, and findings of those of this process.

A view may not wait for a ledger, which may be a database of another machine: a thread reads it, and
the view returns what the last read has returned.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from duemq_common.ledger.errors import LedgerError
from spark_reconciliation.jobs.child_process import Result

RUNS_MAX: Final = 100
WITH_FINDINGS_MAX: Final = 20  # audits whose findings are in memory
Row = dict[str, object]


class RecentAudits:
    """Audits, newest first.

    Args:
        read: Returns the audits in the ledger; called in a thread.
    """

    def __init__(self, read: Callable[[], list[Row]]) -> None:
        self._read = read
        self._rows: list[Row] | None = None
        self._failure = ""
        self._findings: OrderedDict[str, list[Row]] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None

    def add(self, result: Result) -> None:
        """Keep the findings of an audit of this process."""
        self._findings[result.audit_id] = result.offenders
        if len(self._findings) > WITH_FINDINGS_MAX:
            self._findings.popitem(last=False)

    def view(self) -> Row:
        """Return the audits that the last read returned, and read the ledger again.

        `audits` is None before the end of the first read.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_ledger(), name="ledger of audits")
        return {"audits": self._rows, "failure": self._failure}

    def findings_view(self, audit_id: str) -> Row:
        """Return some messages of each finding of an audit; None: they are not in memory."""
        return {"findings": self._findings.get(audit_id)}

    async def close(self) -> None:
        """Wait for the end of a read."""
        if self._reading is not None:
            await self._reading

    async def _read_ledger(self) -> None:
        try:
            self._rows, self._failure = await asyncio.to_thread(self._read), ""
        except LedgerError as error:
            self._failure = str(error)


def audits_of(store: str, url: str) -> list[Row]:
    """Return the audits in the ledger of a store; none without a ledger.

    Raises:
        LedgerError: The ledger cannot be used.
    """
    from duemq_common.ledger.engine import default_url
    from duemq_common.ledger.errors import LedgerUnavailable
    from spark_reconciliation.jobs.audit_ledger import AuditLedger

    try:
        ledger = AuditLedger.open_existing(url or default_url(store))
    except LedgerUnavailable:
        if url:
            raise
        return []
    try:
        return [asdict(audit) for audit in ledger.audits(count_max=RUNS_MAX)]
    finally:
        ledger.close()
