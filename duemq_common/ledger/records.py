"""Records that a ledger stores: plain values without SQL.

A record replaces the one with the same key, so writing it twice has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, Self, TypeVar

Row = dict[str, object]


class LedgerRecord:
    """Base of the dataclasses that are rows of a ledger; attributes have the names of columns.

    Attributes:
        TABLE: Name of the table.
        KEY: Names of the columns of its primary key.
        KEPT: Columns that the log lacks: an empty text or a smaller number does not replace the
            value in the ledger.
        EXPENDABLE: Whether a full queue drops such records first.
    """

    __slots__ = ()
    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    KEPT: ClassVar[tuple[str, ...]] = ()
    EXPENDABLE: ClassVar[bool] = False

    @property
    def identity(self) -> tuple[object, ...]:
        """Table and primary key."""
        return self.TABLE, *(getattr(self, name) for name in self.KEY)

    def replacing(self, old: Self) -> Self:
        """Return this record with the kept columns of an older one that it replaces."""
        if not self.KEPT:
            return self
        kept = {name: _kept(getattr(old, name), getattr(self, name)) for name in self.KEPT}
        return replace(self, **kept)  # type: ignore[type-var]

    def parts(self) -> Mapping[str, Sequence[Row]]:
        """Return the rows of dependent tables, by table; they replace the rows of this key."""
        return {}


class LogSnapshot(Protocol):
    """All records in the log, from which a ledger is rebuilt."""

    @property
    def next_record(self) -> int:
        """Queue offset after the last ownership record that was applied."""

    def records(self) -> Sequence[LedgerRecord]:
        """Return the records in writing order."""


_V = TypeVar("_V", str, int)


def _kept(old: _V, new: _V) -> _V:
    return new or old if isinstance(new, str) else max(old, new)
