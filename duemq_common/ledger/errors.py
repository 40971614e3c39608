"""Errors of a ledger.

DueMQError
└── LedgerError
    ├── LedgerUnavailable     missing, locked, full, or its server is down: a retry may succeed
    ├── LedgerOfAnotherStore  the ledger belongs to another store
    ├── LedgerNewer           a later DueMQ wrote it
    └── UnknownRun            the ledger has no migration with this id
"""

from __future__ import annotations

from duemq_common.errors import DueMQError


class LedgerError(DueMQError):
    """Error: a ledger cannot be used; `where` is its URL without the password."""

    def __init__(self, where: str, reason: str, remedy: str) -> None:
        self.where, self.reason, self.remedy = where, reason, remedy
        super().__init__(f"ledger {where}: {reason}. {remedy}")


class LedgerUnavailable(LedgerError):
    """Error: the ledger cannot be reached or written now."""


class LedgerOfAnotherStore(LedgerError):
    """Error: the ledger belongs to another store."""

    def __init__(self, where: str, *, expected: str, actual: str, path: str) -> None:
        self.expected, self.actual = expected, actual
        reason = f"it belongs to store {actual} ({path}), this is store {expected}"
        remedy = "Give the URL of this store's ledger, or move the file away: a new one is made"
        super().__init__(where, reason, remedy)


class LedgerNewer(LedgerError):
    """Error: the schema of the ledger is newer than this version supports."""

    def __init__(self, where: str, *, version: str, newest: str) -> None:
        self.version, self.newest = version, newest
        reason = f"its schema is {version}; this version knows up to {newest}"
        remedy = "Use the DueMQ that wrote it, or another ledger: a new one is made from the log"
        super().__init__(where, reason, remedy)


class UnknownRun(LedgerError):
    """Error: the ledger has no migration with this id."""

    def __init__(self, where: str, migration_id: str) -> None:
        self.migration_id = migration_id
        remedy = "`duemq migrate history` lists its migrations"
        super().__init__(where, f"it has no migration {migration_id}", remedy)
