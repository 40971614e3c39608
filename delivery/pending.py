"""Pending messages, found and decided on: the protocol that plugins implement.

    by_offset, by_key, by_topic   -> Found: what waits, and what became of the rest
    cancel, move, fire            -> Decided: per message, final when it is returned

Nothing is awaited between look and deed: a message that was found waiting waits still when the
decision about it is made in the same step. A decision is one record in the log that names the
message as its origin; `Decided.log_end` says how far the log must be on the disk before the answer
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from message_store.log.batch import PutBatch

Offsets = npt.NDArray[np.int64]
Verdicts = npt.NDArray[np.int8]
Hooks = Callable[["PutBatch", int], None]
"""Runs the put hooks of all plugins on a batch at now_ms."""


class Verdict(IntEnum):
    """State of a message, or result of a decision about it."""

    DONE = 0  # decided now
    CANCELLED = 1  # it was cancelled before
    DELIVERED = 2  # it does not wait any more: delivered, fired, or in quarantine
    UNKNOWN = 3  # no such message ever waited here
    REFUSED = 4  # it waits as before: the store refuses writes, or the decision is impossible


@dataclass(frozen=True, slots=True)
class Found:
    """Messages that wait, asked for by n names.

    Attributes:
        offsets: (m,) i8: log offsets of their records.
        due_ms: (m,) i8: when each is due.
        asked: (m,) i8: which of the n names each answers to.
        gone: (n,) i1: a `Verdict` for each name that nothing answers to; DONE for the others.
    """

    offsets: Offsets
    due_ms: Offsets
    asked: Offsets
    gone: Verdicts

    def within(self, from_ms: int, until_ms: int) -> Found:
        """Return those that are due in [from_ms, until_ms)."""
        keep = (self.due_ms >= from_ms) & (self.due_ms < until_ms)
        gone = self.gone.copy()
        left = np.setdiff1d(self.asked, self.asked[keep])
        gone[left] = Verdict.UNKNOWN
        return Found(self.offsets[keep], self.due_ms[keep], self.asked[keep], gone)


@dataclass(slots=True)
class Decided:
    """What became of (n,) messages.

    Attributes:
        verdicts: (n,) i1, `Verdict`.
        remarks: by row: why it was refused, or what is unusual about it.
        log_end: the log must be synced up to here before a response is sent.
    """

    verdicts: Verdicts
    remarks: dict[int, str] = field(default_factory=dict)
    log_end: int = 0


class PendingMessages(Protocol):
    """Finds and decides. Belongs to the event loop's thread."""

    async def by_offset(self, offsets: Offsets) -> Found:
        """Find messages by the log offset of the record that was answered to their producer.

        A message that was moved is found by the offsets of all its records.
        """
        ...

    def promised(self, offsets: Offsets) -> Offsets:
        """Return (n,) i8 when held records were promised to be delivered, pending or not.

        -1: the record at that log offset is none of this port's, or promises no time.
        """
        ...

    async def by_key(self, topic: str, keys: Sequence[str], *, unique: bool) -> Found:
        """Find messages by UNIQ_KEY (`unique`) or by one of their KEYS.

        Args:
            topic: where they would go; empty: any.

        Raises:
            StoreError: The key index is switched off or too far behind the log, or too many
                messages have these keys.
        """
        ...

    def by_topic(self, topic: str, from_ms: int, until_ms: int) -> Iterator[Found]:
        """Find what waits for a topic and is due in [from_ms, until_ms), a bounded piece a step.

        What is put after the first step is not looked at.
        """
        ...

    def cancel(self, offsets: Offsets) -> Decided:
        """Have messages never be delivered."""
        ...

    def move(self, offsets: Offsets, due_ms: Offsets, hooks: Hooks) -> Decided:
        """Have messages be delivered at another time; one that has come: now.

        Args:
            due_ms: (n,) i8, one for each.
            hooks: run on records that this port cannot hold at that time itself.
        """
        ...

    def fire(self, offsets: Offsets) -> Decided:
        """Deliver messages now."""
        ...


def none_found(names: int) -> Found:
    """Return that nothing answers to any of `names` names."""
    none = np.empty(0, np.int64)
    return Found(none, none, none, np.full(names, Verdict.UNKNOWN, np.int8))
