"""Protocol for pending messages: lookup and decisions, implemented by plugins.

    by_offset, by_key    -> Found: pending messages; verdicts of all other names
    search               -> PendingPiece: pending messages by topic and due time, piece by piece
    cancel, move, fire   -> Decided: per message, final when it is returned

There is no await between check and decision, so a message that was found pending is still pending
when it is decided in the same step. A decision is one record in the log that names the message as
its origin; the log must be on the disk up to `Decided.log_end` before the response is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

if TYPE_CHECKING:
    from message_store.log.batch import PutBatch

Offsets = npt.NDArray[np.int64]
Verdicts = npt.NDArray[np.int8]
Position = tuple[int, int]
"""Position of a walk: part of the pending messages, and offset in it."""
Hooks = Callable[["PutBatch", int], None]
"""Runs the put hooks of all plugins on a batch at now_ms."""


class Verdict(IntEnum):
    """State of a message, or result of a decision about it."""

    DONE = 0  # the decision was made; in a lookup: the message is pending
    CANCELLED = 1  # it was cancelled before
    DELIVERED = 2  # it is no longer pending: delivered, fired, or in quarantine
    UNKNOWN = 3  # no such pending message is known
    REFUSED = 4  # it is still pending: the store refuses writes, or the decision is impossible


class Found(Struct, frozen=True):
    """Pending messages found for n names.

    Attributes:
        offsets: (m,) i8: log offsets of their records.
        due_ms: (m,) i8: their due times.
        name_index: (m,) i8: index of the name by which each message was found.
        verdicts: (n,) i1: `Verdict` of each name; DONE if it has a pending message.
    """

    offsets: Offsets
    due_ms: Offsets
    name_index: Offsets
    verdicts: Verdicts

    def within(self, from_ms: int, until_ms: int) -> Found:
        """Return the messages that are due in [from_ms, until_ms)."""
        keep = (self.due_ms >= from_ms) & (self.due_ms < until_ms)
        verdicts = self.verdicts.copy()
        left = np.setdiff1d(self.name_index, self.name_index[keep])
        verdicts[left] = Verdict.UNKNOWN
        return Found(self.offsets[keep], self.due_ms[keep], self.name_index[keep], verdicts)

    def without(self, offsets: Offsets) -> Found:
        """Return the messages whose record is at none of these log offsets; same verdicts."""
        keep = ~np.isin(self.offsets, offsets)
        return Found(self.offsets[keep], self.due_ms[keep], self.name_index[keep], self.verdicts)


class HitQuery(Struct, frozen=True, kw_only=True):
    """Search for pending messages.

    Attributes:
        topic: Real topic; empty: all.
        from_ms, until_ms: Due times from `from_ms` to before `until_ms`.
        count_max: Maximum number of messages of one piece.
    """

    topic: str = ""
    from_ms: int = 0
    until_ms: int = 1 << 62
    count_max: int = 2_000


class PendingPiece(Struct, frozen=True, kw_only=True):
    """Pending messages that a search has found, possibly none.

    Attributes:
        offsets, due_ms: (m,) i8: log offsets of their records, and due times.
        topic_indexes: (m,) i8: real topics, -1 if unknown.
        keys: Unique keys, empty without one.
        cursor: Cursor of the next piece, None at the end.
        may_repeat: Whether a later piece may contain these messages again.
        damage: Unreadable parts of the store, whose messages are missing.
    """

    offsets: Offsets
    due_ms: Offsets
    topic_indexes: Offsets
    keys: list[bytes]
    cursor: str | None
    may_repeat: bool = False
    damage: list[str] = []


class Decided(Struct):
    """Results of a decision about (n,) messages.

    Attributes:
        verdicts: (n,) i1, `Verdict`.
        remarks: By row: reason of the refusal, or a special condition.
        log_end: Log offset up to which the log must be synced before a response is sent.
    """

    verdicts: Verdicts
    remarks: dict[int, str] = field(default_factory=dict)
    log_end: int = 0


class PendingMessages(Protocol):
    """Lookup and decisions of one component. Belongs to the event loop's thread."""

    async def by_offset(self, offsets: Offsets) -> Found:
        """Find messages by log offset, as in the offset message id that a send returns.

        A message that was moved is found by the offsets of all its records.
        """
        ...

    def promised(self, offsets: Offsets) -> Offsets:
        """Return (n,) i8 due times of records, pending or not.

        -1 for records of other components and records without a due time.
        """
        ...

    async def by_key(
        self, topic: str | Sequence[str], keys: Sequence[str], *, unique: bool
    ) -> Found:
        """Find messages by UNIQ_KEY (`unique`) or by one of their KEYS.

        Args:
            topic: Real topic of the messages, or of those of each key; empty for any topic.

        Raises:
            StoreError: The key index is switched off or too far behind the log, or too many
                messages have these keys.
        """
        ...

    def search(self, query: HitQuery, cursor: str) -> PendingPiece:
        """Return the next pending messages of a search; bounded work.

        Args:
            cursor: Cursor of the piece before; empty for the first one.
        Raises:
            ValueError: The text is not a cursor.
            StoreError: The pending messages are not known.
        """
        ...

    def walk(self, position: Position) -> tuple[Found, Position | None]:
        """Return the pending messages of the next bounded piece, and the position after it.

        From the position (0, 0), all messages that are pending during the whole walk are returned.
        One that is moved meanwhile may be returned twice, with its former and its new due time.

        Returns:
            `Found` by one name; None at the end.
        Raises:
            StoreError: The pending messages are not known.
        """
        ...

    def wake_due(self, now_ms: int) -> bool:
        """Wake the delivery of messages that are due; return whether there are any."""
        ...

    def cancel(self, offsets: Offsets) -> Decided:
        """Cancel messages: they are never delivered."""
        ...

    def move(self, offsets: Offsets, due_ms: Offsets, hooks: Hooks) -> Decided:
        """Move messages to other due times; a message with a due time in the past is delivered now.

        Args:
            due_ms: (n,) i8: new due time of each message.
            hooks: Put hooks that redirect a moved message to the component that stores it.
        """
        ...

    def fire(self, offsets: Offsets) -> Decided:
        """Deliver messages now."""
        ...


def none_found(names: int) -> Found:
    """Return the result of a lookup that found nothing for `names` names."""
    none = np.empty(0, np.int64)
    return Found(none, none, none, np.full(names, Verdict.UNKNOWN, np.int8))


def found_by_one(offsets: Offsets, due_ms: Offsets) -> Found:
    """Return the result of a lookup that found pending messages by one name."""
    verdicts = np.full(1, Verdict.DONE, np.int8)
    return Found(offsets.copy(), due_ms.copy(), np.zeros(offsets.size, np.int64), verdicts)
