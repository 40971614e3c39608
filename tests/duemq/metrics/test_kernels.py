"""The kernels of statistics against their plain twins."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duemq.metrics import kernels
from message_store import layout


def size_bucket(size: int) -> int:
    return sum(size > bound for bound in kernels.SIZE_BOUNDS.tolist())


stored_rows = st.fixed_dictionaries(
    {
        "status": st.sampled_from([0, 0, 0, 13]),
        "topic_index": st.integers(0, 2),
        "real_topic_index": st.integers(-1, 2),
        "record_size": st.sampled_from([91, 1_024, 1_025, 5_000_000]),
        "prop_flags": st.sampled_from(
            [0, layout.PROP_TRAN_MSG, layout.PROP_SHARDED, layout.PROP_PRIORITY]
        ),
        "sys_flag": st.sampled_from([0, layout.SYS_COMMIT, layout.SYS_COMPRESSED]),
        "out_ms": st.sampled_from([-1, 0, 61_000, 10**9]),
        "born_ms": st.sampled_from([0, 1_000]),
    }
)


def type_of(row: dict[str, int], delivered: bool) -> int:
    if row["prop_flags"] == layout.PROP_TRAN_MSG or row["sys_flag"] == layout.SYS_COMMIT:
        return kernels.TRANSACTION
    if delivered or row["real_topic_index"] >= 0:
        return kernels.DELAY
    types = {layout.PROP_SHARDED: kernels.FIFO, layout.PROP_PRIORITY: kernels.PRIORITY}
    return types.get(row["prop_flags"], kernels.NORMAL)


@given(st.lists(stored_rows, max_size=8), st.booleans())
def test_count_puts(rows: list[dict[str, int]], delivered: bool) -> None:
    batch: Any = np.zeros(max(len(rows), 1), layout.PUT)
    for at, row in enumerate(rows):
        for name, value in row.items():
            batch[at][name] = value
    shape = (3, kernels.TYPES, 3 + kernels.SIZE_BOUNDS.size)
    puts, traffic = np.zeros((3, 2), np.int64), np.zeros(shape, np.int64)
    delays = np.zeros((3, 2 + kernels.DELAY_BOUNDS_S.size), np.int64)
    totals = kernels.count_puts(batch, len(rows), delivered, puts, traffic, delays)
    stored = [row for row in rows if row["status"] == 0]
    assert tuple(totals) == (len(stored), sum(row["record_size"] for row in stored))
    wanted, wanted_delays = np.zeros(shape, np.int64), np.zeros_like(delays)
    for row in stored:
        counted = wanted[row["topic_index"], type_of(row, delivered)]
        counted[0] += 1
        counted[1] += row["record_size"]
        counted[2 + size_bucket(row["record_size"])] += 1
        if not delivered and row["out_ms"] >= 0 and row["real_topic_index"] >= 0:
            delay_s = max((row["out_ms"] - row["born_ms"]) // 1_000, 0)
            bucket = sum(delay_s > bound for bound in kernels.DELAY_BOUNDS_S.tolist())
            wanted_delays[row["real_topic_index"], 0] += delay_s
            wanted_delays[row["real_topic_index"], 1 + bucket] += 1
    assert traffic.tolist() == wanted.tolist()
    assert delays.tolist() == wanted_delays.tolist()
    assert puts.tolist() == wanted.sum(axis=1)[:, :2].tolist()
