"""Records of decisions about timers: the size of their batches."""

from __future__ import annotations

import numpy as np
import pytest

from timer_store.pending.decision_records import BATCH_BYTES_MAX, batch_size


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([1, 1, 1], 3),
        ([1, 1, 1, 1, 1], 4),
        ([BATCH_BYTES_MAX - 1, 1, 1], 2),
        ([BATCH_BYTES_MAX, 1], 1),
        ([BATCH_BYTES_MAX + 1, 1], 1),
        ([-1, BATCH_BYTES_MAX, 1], 2),
    ],
    ids=["all", "rows", "bytes", "one", "a larger one alone", "a damaged size"],
)
def test_the_records_of_a_batch_are_limited(sizes: list[int], count: int) -> None:
    assert batch_size(np.array(sizes, np.int32), 4) == count
