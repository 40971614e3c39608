"""Expected states of the messages of a history, and audits of its store that must have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.rules import CLEAN
from spark_reconciliation.audit.summary import summarize
from spark_reconciliation.incremental.incremental_audit import audit_with_state
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.scan.tables import CLOCK_SET_BACK
from spark_reconciliation.spark.read import audit_stores, count_stores

LATE_MS: Final = 120_000
CONFIG: Final = AuditConfig(late_ms=LATE_MS, trust_clock=True)
CHANGING: Final = "Changing"  # topic that is deleted and created again
Name = tuple[str, str]
"""Topic and unique id."""


class State(Enum):
    """State of a delayed message; the value is its verdict."""

    PENDING = "pending"
    DELIVERED = "ok"
    FIRED = "moved"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class Expected:
    """Delayed message.

    Attributes:
        accepted_ms: Due time at the time of the send.
        may_end: Whether it is due, and a broker was killed before it had delivered everything.
    """

    topic: str
    due_ms: int
    accepted_ms: int
    state: State = State.PENDING
    may_end: bool = False

    @property
    def verdicts(self) -> set[str]:
        """Verdicts that an audit may give."""
        ended = {State.DELIVERED.value, State.QUARANTINED.value} if self.may_end else set()
        if self.state is State.DELIVERED and self.due_ms != self.accepted_ms:
            return {"moved"}
        return {self.state.value, *ended} | ({"moved"} if ended else set())


class StoreAudits:
    """Audits of one store, with and without the state of the last one.

    Args:
        home: Folder for the state, and for a link, as each kill continues with another folder.
    """

    def __init__(self, session: LocalSession, home: Path) -> None:
        self._session = session
        self._link, self._state = home / "store", home / "audit-state"

    def check(self, root: Path, messages: Mapping[Name, Expected], now_ms: int) -> None:
        """Compare audits of a store with the expected states and with each other."""
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(root)
        paths, config = [str(self._link)], replace(CONFIG, as_of_ms=now_ms)
        verdicts, unread = audit_stores(self._session, paths, config)
        gaps = [row.asDict() for row in unread.collect() if row["damage"] != CLOCK_SET_BACK]
        assert gaps == []
        missing = _missing([row.asDict() for row in verdicts.collect()], messages)
        first_file = min((root / "commitlog").iterdir())
        if int(first_file.name):  # retention has removed records of messages that are settled
            missing = [one for one in missing if one.state is State.PENDING and not one.may_end]
        assert missing == []
        brief, unread_ranges = count_stores(self._session, paths, config)
        full = summarize(brief.rest, unread_ranges, kept=brief.kept)
        incremental = audit_with_state(self._session, paths[0], config, self._state)
        assert replace(incremental, state=None) == full, incremental.state


def _missing(rows: list[dict[str, Any]], messages: Mapping[Name, Expected]) -> list[Expected]:
    """Compare verdicts with the expected states; return the messages without a verdict."""
    audited: dict[Name, dict[str, Any]] = {}
    for row in rows:
        key = row["topic"], row["unique_id"]
        message = messages.get(key)
        if message is None:
            quarantined = row["verdict"] == "quarantined" and row["topic"] == CHANGING
            assert row["verdict"] in CLEAN or quarantined, row
            continue
        assert key not in audited, (row, audited[key])
        audited[key] = row
        assert row["verdict"] in message.verdicts, (message, row)
        if row["verdict"] in ("ok", "pending"):
            assert row["due_ms"] == message.due_ms, (message, row)
    return [one for key, one in messages.items() if key not in audited]
