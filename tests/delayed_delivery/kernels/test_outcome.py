"""Outcomes of the rows of a batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from delayed_delivery.kernels.outcome import settle
from message_store import layout


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 13, 14]), st.integers(0, 9)), max_size=9))
def test_settle(values: list[tuple[int, int]]) -> None:
    rows = np.zeros(len(values), layout.PUT)
    for row, (status, number) in zip(rows, values, strict=True):
        row["status"], row["store_ms"], row["topic_index"] = status, number, number + 1
    store_ms, topic_index = np.zeros(9, np.int64), np.zeros(9, np.int32)
    done, illegal = settle(rows, len(values), store_ms, topic_index)
    refused = [at for at, (status, _) in enumerate(values) if status > 1]
    assert done == min(refused, default=len(values))
    assert illegal == sum(status == 13 for status, _ in values)
    assert store_ms[:done].tolist() == [number for _, number in values[:done]]
    assert topic_index[:done].tolist() == [number + 1 for _, number in values[:done]]
