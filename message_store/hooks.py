"""What a store calls around an append, and how the tags code of a topic is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from message_store.log.batch import PutBatch

PutHook = Callable[["PutBatch", int], None]
"""Called with a batch and now_ms before it is appended; changes columns, sets `status`."""
Dispatcher = Callable[["PutBatch"], None]
"""Called with every appended batch, in log order, after its queues are written."""


@dataclass(frozen=True, slots=True)
class LevelTable:
    """Delays of levels 1..n in ms (index 0 unused), in force from a commit log offset on."""

    from_offset: int
    delays_ms: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TagsCodeRule:
    """The tags code of `topic` is a time: store time + delay of the record's DELAY level.

    `tables` are ascending by `from_offset`; a record uses the last one at or before it, so that
    a rebuilt queue keeps the time that was promised.
    """

    topic: str
    tables: Sequence[LevelTable] = field(default_factory=tuple)
