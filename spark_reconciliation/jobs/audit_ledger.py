"""Records of audits in the ledger: one per run, with its counts by verdict.

The ledger is in the store if the store has an identity, that is, if DueMQ has run on it; an audit
writes nothing into Apache's stores. An audit of several stores is recorded only in the ledger of a
URL.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sqlalchemy import Select, inspect, select, tuple_

from duemq_common.errors import CorruptStore
from duemq_common.ledger.engine import default_url
from duemq_common.ledger.identity import known_store_id
from duemq_common.ledger.ledger import Ledger, read_rows
from duemq_common.ledger.location import LedgerLocation
from duemq_common.ledger.records import LedgerRecord, Row
from duemq_common.ledger.tables import AUDIT_FINDINGS, AUDIT_VERDICTS, AUDITS

AUDITS_READ_MAX: Final = 1_000
TEXTS: Final = ("verdict", "why", "topic", "unique_id")
NUMBERS: Final = ("due_ms", "delivered_ms", "root", "alike")
"""Columns of a finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord(LedgerRecord):
    """One run of an audit.

    Attributes:
        made_by: User that started it, or `cron`.
        exit_code: 0 clean, 1 findings or incomplete, 2 could not run.
        why: Why it could not run, or the result of a comparison with tables or other stores.
        late_limit_ms: Maximum lateness that is ok, in ms.
        unread: Number of unreadable parts of the store.
        findings: Some messages of each finding and reason; empty when the audit is listed.
    """

    TABLE = "duemq_audits"
    KEY = ("audit_id",)

    audit_id: str
    started_ms: int
    ended_ms: int
    made_by: str = ""
    stores: tuple[str, ...] = ()
    exit_code: int = 0
    complete: bool = True
    late_limit_ms: int = 0
    late_p50_ms: int | None = None
    late_p99_ms: int | None = None
    late_max_ms: int | None = None
    unread: int = 0
    why: str = ""
    verdicts: Mapping[str, int] = field(default_factory=dict)
    findings: Sequence[Mapping[str, object]] = ()

    @property
    def messages(self) -> int:
        """Number of messages with a verdict."""
        return sum(self.verdicts.values())

    def parts(self) -> dict[str, list[Row]]:
        """Return the ledger's rows of the verdicts, and of the findings."""
        counts = self.verdicts.items()
        rows: list[Row] = [{"verdict": name, "messages": count} for name, count in counts]
        findings: list[Row] = [
            {"position": position, **{name: one.get(name) for name in NUMBERS}}
            | {name: str(one.get(name) or "") for name in TEXTS}
            for position, one in enumerate(self.findings)
        ]
        return {"duemq_audit_verdicts": rows, "duemq_audit_findings": findings}


def new_audit_id(now_ms: int, salt: bytes) -> str:
    """Return an id that sorts by time: `audit-20261121-163000-1f2e`."""
    return f"audit-{datetime.fromtimestamp(now_ms / 1_000, UTC):%Y%m%d-%H%M%S}-{salt[:2].hex()}"


def location_of(stores: Sequence[str], url: str = "") -> LedgerLocation | None:
    """Return the ledger of stores, None if they have none and `url` is empty."""
    names = [_identity(store) for store in stores]
    if url:
        identities = [name or f"path {store}" for name, store in zip(names, stores, strict=True)]
        owner = names[0] if len(names) == 1 and names[0] else _digest(identities)
    elif len(names) == 1 and names[0]:
        owner, url = names[0], default_url(stores[0])
    else:
        return None
    return LedgerLocation(url=url, store_id=owner, store_path=", ".join(stores))


def _identity(store: str) -> str | None:
    if "://" in store:
        return None
    try:
        return known_store_id(Path(store) / "config")
    except (CorruptStore, OSError):
        return None


def _digest(names: Sequence[str]) -> str:
    text = "\n".join(sorted(names)).encode()
    return f"stores-{hashlib.sha256(text).hexdigest()[:16]}"


class AuditLedger(Ledger):
    """Reader of audits in an open ledger."""

    def audits(
        self, *, count_max: int = AUDITS_READ_MAX, before: tuple[int, str] | None = None
    ) -> list[AuditRecord]:
        """Return audits, newest first.

        Args:
            before: Start and id of the audit after the first one; None: the newest is the first.
        """
        newest = select(AUDITS).order_by(AUDITS.c.started_ms.desc(), AUDITS.c.audit_id.desc())
        if before is not None:
            newest = newest.where(tuple_(AUDITS.c.started_ms, AUDITS.c.audit_id) < before)
        return self._read(newest.limit(count_max))

    def audit(self, audit_id: str) -> AuditRecord | None:
        """Return an audit; None if the ledger does not have it."""
        return next(iter(self._read(select(AUDITS).where(AUDITS.c.audit_id == audit_id))), None)

    def findings(
        self, audit_id: str, *, first: int = 0, count_max: int = AUDITS_READ_MAX
    ) -> list[Row] | None:
        """Return findings of an audit in order; None if an earlier build wrote the ledger."""
        table = AUDIT_FINDINGS
        query = select(*(table.c[name] for name in (*TEXTS, *NUMBERS)))
        query = query.where(table.c.audit_id == audit_id, table.c.position >= first)
        with self.reading() as connection:
            if not inspect(connection).has_table(table.name):
                return None
            rows = connection.execute(query.order_by(table.c.position).limit(count_max))
            return [dict(row) for row in rows.mappings()]

    def _read(self, query: Select[tuple[object, ...]]) -> list[AuditRecord]:
        """Return audits with their verdicts."""
        with self.reading() as connection:
            records = read_rows(connection, query, AuditRecord)
            condition = AUDIT_VERDICTS.c.audit_id.in_([record.audit_id for record in records])
            parts = connection.execute(select(AUDIT_VERDICTS).where(condition)).all()
        counts: dict[str, dict[str, int]] = {}
        for audit_id, verdict, messages in parts:
            counts.setdefault(audit_id, {})[verdict] = messages
        return [
            replace(
                record,
                stores=tuple(json.loads(str(record.stores))),
                verdicts=counts.get(record.audit_id, {}),
            )
            for record in records
        ]
