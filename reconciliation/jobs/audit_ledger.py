"""Ledger of audits: one row per run.

    with ledger_of(place) as ledger: ledger.write(AuditRecord(...))

The ledger lies beside the store, if the store has a name, that is if a broker of ours has run on
it: nothing is written into Apache's. An audit of several stores is told of where a URL says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import delete, select

from message_store.errors import CorruptStore
from message_store.ledger.database import Database, clean, insert_into
from message_store.ledger.engine import default_url
from message_store.ledger.identity import known_store_id
from message_store.ledger.models import AuditRow, AuditVerdictRow

AUDITS_READ_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One run of an audit.

    Attributes:
        made_by: the user, or `cron`.
        exit_code: 0 clean, 1 findings or incomplete, 2 could not run: then `why` says why.
        late_limit_ms: what was still called ok.
        unread: places that are no records, as far as they were counted.
    """

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

    @property
    def messages(self) -> int:
        """How many messages have a verdict."""
        return sum(self.verdicts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which ledger, and whose."""

    url: str
    store_id: str
    stores: tuple[str, ...]


def new_audit_id(now_ms: int, salt: bytes) -> str:
    """Return an id that sorts by time: `audit-20261121-163000-1f2e`."""
    return f"audit-{datetime.fromtimestamp(now_ms / 1_000, UTC):%Y%m%d-%H%M%S}-{salt[:2].hex()}"


def place_of(stores: Sequence[str], url: str = "") -> Place | None:
    """Return the ledger that tells of stores, None if there is none and no `url` names one."""
    names = [_name(store) for store in stores]
    if not url:
        if len(stores) != 1 or names[0] is None:
            return None
        return Place(url=default_url(stores[0]), store_id=names[0], stores=tuple(stores))
    known = [name or f"path {store}" for name, store in zip(names, stores, strict=True)]
    whole = known[0] if len(known) == 1 and names[0] else _digest(known)
    return Place(url=url, store_id=whole, stores=tuple(stores))


def _name(store: str) -> str | None:
    if "://" in store:
        return None
    try:
        return known_store_id(Path(store) / "config")
    except (CorruptStore, OSError):
        return None


def _digest(names: Sequence[str]) -> str:
    text = "\n".join(sorted(names)).encode()
    return f"stores-{hashlib.sha256(text).hexdigest()[:16]}"


class AuditLedger(Database):
    """An open ledger of audits."""

    AWAY = "The audit goes on; only its row in the ledger is missing"
    REFUSED = "The audit goes on; please report this"
    MISSING = "The first audit of a store makes it"

    @classmethod
    def at(cls, place: Place, now_ms: int) -> AuditLedger:
        """Open the ledger at a place; see `Database.open`."""
        path = ", ".join(place.stores)
        return cls.open(place.url, store_id=place.store_id, store_path=path, now_ms=now_ms)

    def write(self, record: AuditRecord) -> None:
        """Write an audit, all of it or nothing; it replaces the one with its id.

        Raises:
            LedgerUnavailable: It is gone, locked or full.
            LedgerError: It refuses this record.
        """
        row = {name: clean(getattr(record, name)) for name in AuditRow.__table__.c.keys()}  # noqa: SIM118
        row["stores"] = json.dumps(record.stores, ensure_ascii=False)
        counts = [
            {"audit_id": record.audit_id, "verdict": name, "messages": count}
            for name, count in record.verdicts.items()
        ]
        with self._transaction() as connection:
            old = AuditVerdictRow.audit_id == record.audit_id
            connection.execute(delete(AuditVerdictRow).where(old))
            _, insert = insert_into(connection, AuditRow)
            new = {name: insert.excluded[name] for name in row if name != "audit_id"}
            connection.execute(
                insert.on_conflict_do_update(index_elements=["audit_id"], set_=new), [row]
            )
            if counts:
                connection.execute(insert_into(connection, AuditVerdictRow)[1], counts)

    def audits(self, *, count_max: int = AUDITS_READ_MAX) -> list[AuditRecord]:
        """Return audits, the newest first."""
        row, part = AuditRow, AuditVerdictRow
        newest = select(row.__table__).order_by(row.started_ms.desc(), row.audit_id.desc())
        with self._reading() as connection:
            found = connection.execute(newest.limit(count_max)).mappings().all()
            ids = [item["audit_id"] for item in found]
            parts = connection.execute(select(part.__table__).where(part.audit_id.in_(ids))).all()
        counts: dict[str, dict[str, int]] = {}
        for audit_id, verdict, messages in parts:
            counts.setdefault(audit_id, {})[verdict] = messages
        return [_record(item, counts.get(item["audit_id"], {})) for item in found]


def _record(row: Mapping[Any, Any], verdicts: Mapping[str, int]) -> AuditRecord:
    values = {str(name): row[name] for name in row if name != "messages"}
    values["stores"] = tuple(json.loads(values["stores"]))
    return AuditRecord(**values, verdicts=verdicts)
