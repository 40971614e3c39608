"""Callbacks around an append, and rules for tags codes that recovery cannot compute itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from message_store.layout import Rows
from message_store.log.batch import PutBatch

if TYPE_CHECKING:  # a client starts without the compiler
    from message_store.log.commit_log import CommitLog

PutHook = Callable[[PutBatch, int], None]
"""Called with a batch and now_ms before it is appended; changes columns, sets `status`.

A hook with an attribute `kinds` is called only with batches that may contain one of these kinds of
messages (`PutBatch.kinds`).
"""
Dispatcher = Callable[[PutBatch], None]
"""Called with every appended batch, in log order, after its queues are written."""


class TagsCodeRule(Protocol):
    """Rule for the tags codes of one topic that are not hashes of tags, for recovery."""

    @property
    def topic(self) -> str: ...

    def tags_codes(self, rows: Rows, log: CommitLog) -> npt.NDArray[np.int64]:
        """Return the tags code of each record of the topic, (n,) `layout.SCANNED`."""
        ...
