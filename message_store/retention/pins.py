"""Pins: the first log offset that a component still needs.

A pin returns an offset, None (nothing is pinned), or `UNKNOWN`, which pins the whole log: a
component that does not know its pending messages must not return None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final


class Unknown(Enum):
    """Result of a pin whose owner cannot determine its needs."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
FirstPending = int | None | Unknown
Pin = Callable[[], FirstPending]


def first_pending(offsets: Iterable[FirstPending]) -> FirstPending:
    """Return the lowest offset of several pins, `UNKNOWN` if one of them is unknown."""
    known_offsets: list[int] = []
    for offset in offsets:
        if isinstance(offset, Unknown):
            return UNKNOWN
        if offset is not None:
            known_offsets.append(offset)
    return min(known_offsets, default=None)


def is_pinned(end: int, pinned_from: FirstPending) -> bool:
    """Return whether a file that ends at log offset `end` is needed."""
    if isinstance(pinned_from, Unknown):
        return True
    return pinned_from is not None and end > pinned_from
