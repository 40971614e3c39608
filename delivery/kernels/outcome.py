"""Compiled evaluation of the rows of a batch after the put."""

from __future__ import annotations

from typing import Any

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
            done = min(done, i)
            illegal += status == MESSAGE_ILLEGAL
        store_ms[i], topic_index[i] = rows[i]["store_ms"], rows[i]["topic_index"]
    return done, illegal
