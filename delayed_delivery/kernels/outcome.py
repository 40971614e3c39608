"""Compiled evaluation of a batch of deliveries after the put: outcome and lateness."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.encode import MESSAGE_ILLEGAL
from message_store.kernels.kernel import kernel

SKIPPED = 1  # status of a row that is not appended, because its source record was removed


@kernel
def settle(rows: Any, count: int, store_ms: Any, topic_index: Any) -> Any:
    """Record store time and topic of the leading rows that the store did not refuse.

    Args:
        rows: (n,) message_store.layout.PUT.
        store_ms, topic_index: (m,) i8, i4 out, m >= count.

    Returns (number of leading rows without a refusal, number of permanently refused rows).
    """
    done, illegal = count, 0
    for i in range(count):
        status = rows[i]["status"]
        if status > SKIPPED:
            # the first refusal; rows after it may be stored all the same
            done = min(done, i)
            illegal += status == MESSAGE_ILLEGAL
        store_ms[i], topic_index[i] = rows[i]["store_ms"], rows[i]["topic_index"]
    return done, illegal


@kernel
def count_late(due_ms: Any, store_ms: Any, bounds_ms: Any, buckets: Any) -> Any:
    """Add deliveries to the buckets of a histogram; return (sum, maximum) of their lateness.

    Args:
        due_ms, store_ms: (n,) i8.
        bounds_ms: (m,) i8, ascending upper bounds; buckets: (m + 1,) i8.
    """
    total, highest = np.int64(0), np.int64(0)
    for i in range(due_ms.size):
        # after the clock was set back, a delivery can seem early
        late = max(store_ms[i] - due_ms[i], np.int64(0))
        position = 0
        while position < bounds_ms.size and late > bounds_ms[position]:
            position += 1
        buckets[position] += 1
        total += late
        highest = max(highest, late)
    return total, highest
