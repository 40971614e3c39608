"""Compiled update of a lateness histogram."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.kernel import kernel


@kernel
def count_late(due_ms: Any, store_ms: Any, bounds_ms: Any, buckets: Any) -> Any:
    """Add deliveries to the buckets of a histogram; return (sum, maximum) of their lateness.

    Args:
        due_ms, store_ms: (n,) i8.
        bounds_ms: (m,) i8, ascending upper bounds; buckets: (m + 1,) i8.
    """
    total, highest = np.int64(0), np.int64(0)
    for i in range(due_ms.size):
        late = max(store_ms[i] - due_ms[i], np.int64(0))
        at = 0
        while at < bounds_ms.size and late > bounds_ms[at]:
            at += 1
        buckets[at] += 1
        total += late
        highest = max(highest, late)
    return total, highest
