"""Compiled reader of records at given log offsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic
from message_store.queues.topic_table import TopicArrays


@kernel
def read_rows(data: Bytes, base: int, offsets: Any, arrays: TopicArrays, out: Any) -> Any:
    """Read the records at log offsets into `out`; return their number.

    Args:
        data: Bytes of the log; data[0] is log offset `base`.
        offsets: (n,) i8, each within `data`.
        out: (n,) SCANNED, without rows for offsets that have no record.
    """
    n = 0
    for i in range(offsets.size):
        pos = np.int64(offsets[i] - base)
        # a row without a record is used again
        row = out[n]
        if read_frame(data, pos, data.size, offsets[i], row) <= 0:
            continue
        row["damage"] = 0
        row["topic_index"] = find_topic(data, pos + row["topic_pos"], row["topic_len"], arrays)
        n += 1
    return n
