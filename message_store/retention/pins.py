"""Pins: the first log offset that a component still needs.

A pin has three answers: an offset, None (nothing is pinned), or `UNKNOWN`. The last one pins the
whole log: a component that does not know what is pending must not answer None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final


class Unknown(Enum):
    """The answer of a pin whose owner does not know what it needs."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
FirstPending = int | None | Unknown
Pin = Callable[[], FirstPending]


def first_pending(answers: Iterable[FirstPending]) -> FirstPending:
    """Return what several pins need together: `UNKNOWN` if one of them is, else the lowest."""
    known: list[int] = []
    for answer in answers:
        if isinstance(answer, Unknown):
            return UNKNOWN
        if answer is not None:
            known.append(answer)
    return min(known, default=None)


def is_pinned(end: int, pinned_from: FirstPending) -> bool:
    """Return whether a file that ends at log offset `end` holds something that is needed."""
    if isinstance(pinned_from, Unknown):
        return True
    return pinned_from is not None and end > pinned_from
