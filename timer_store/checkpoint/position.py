"""Position of the timer store: read time and queue offset."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Position:
    """The moving marks of a timer store; `read_ms` and `staged_ms` start slots.

    Attributes:
        read_ms: the first slot that is not completely delivered.
        staged_ms: slots before are loaded for delivery; at least `read_ms`.
        part: the slot at `staged_ms` is loaded up to this (due_ms, phys_offset).
        rolled_ms: slots before this may have been rolled by the last run.
        queue_offset: the next unit of the timer queue to take in.
        handover_offset: the next mark of a handover to take in.
        handover_unit: units of that handover before this queue offset of its level are taken in.
    """

    read_ms: int
    staged_ms: int
    queue_offset: int = 0
    rolled_ms: int = -1
    part: tuple[int, int] | None = None
    handover_offset: int = 0
    handover_unit: int = 0
