"""Errors of a ledger.

DueMQError
└── LedgerError
    ├── LedgerUnavailable     gone, locked, full, or its server is away: comes back by itself
    ├── LedgerOfAnotherStore  it tells of another store's migrations
    ├── LedgerNewer           written by a later DueMQ
    ├── LedgerOnlyForward     Alembic was asked for an older schema
    └── UnknownRun            no migration of that id
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from message_store.errors import DueMQError


class LedgerError(DueMQError):
    """A ledger that cannot be used; `where` is its URL without a password."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        self.where, self.why, self.remedy = where, why, remedy
        super().__init__(f"ledger {where}: {why}. {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to another process as it is, whatever its arguments were."""
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[LedgerError], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.__dict__.update(named)
    return error


class LedgerUnavailable(LedgerError):
    """It cannot be reached or written now."""


class LedgerOfAnotherStore(LedgerError):
    """It belongs to another store."""

    def __init__(self, where: str, *, wanted: str, found: str, path: str) -> None:
        self.wanted, self.found = wanted, found
        why = f"it belongs to store {found} ({path}), this is store {wanted}"
        remedy = "Name this store's own ledger, or move the file away: a new one is made of the log"
        super().__init__(where, why, remedy)


class LedgerOnlyForward(LedgerError):
    """It is not taken back to an older schema: what that has no place for would be lost."""

    def __init__(self, where: str) -> None:
        super().__init__(
            where,
            "it is not taken back to an older schema",
            "Move it away: an older DueMQ makes a new one of the log",
        )


class LedgerNewer(LedgerError):
    """Its schema is one that this version does not know."""

    def __init__(self, where: str, *, found: Iterable[str], newest: str) -> None:
        self.found, self.newest = sorted(found), newest
        why = f"its schema is {', '.join(self.found)}; this version knows up to {newest}"
        remedy = "Use the DueMQ that wrote it, or another ledger: a new one is made of the log"
        super().__init__(where, why, remedy)


class UnknownRun(LedgerError):
    """Nothing is known of a migration."""

    def __init__(self, where: str, migration_id: str) -> None:
        self.migration_id = migration_id
        remedy = "`duemq migrate history` lists those it knows"
        super().__init__(where, f"it knows no migration {migration_id}", remedy)
