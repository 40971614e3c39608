"""Compiled loops of statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.kernel import kernel
from message_store.layout import (
    PROP_PRIORITY,
    PROP_SHARDED,
    PROP_TRAN_MSG,
    SYS_TRANSACTION_MASK,
)

# Message types, rows of `traffic`. TopicMessageType
NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY = range(5)
TYPES = 5
# Upper bounds of histograms. BrokerMetricsManager, DefaultStoreMetricsManager
SIZE_BOUNDS = np.array([1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20], np.int64)
DELAY_BOUNDS_S = np.array([60, 600, 3_600, 43_200, 86_400, 259_200], np.int64)


@kernel
def message_type(row: Any, delivered: bool) -> int:
    """Return the type of a stored message, an index into `traffic`."""
    if row["prop_flags"] & PROP_TRAN_MSG != 0 or row["sys_flag"] & SYS_TRANSACTION_MASK != 0:
        return TRANSACTION
    if delivered or row["real_topic_index"] >= 0:
        return DELAY
    if row["prop_flags"] & PROP_SHARDED != 0:
        return FIFO
    return PRIORITY if row["prop_flags"] & PROP_PRIORITY != 0 else NORMAL


@kernel
def bucket(value: int, bounds: npt.NDArray[np.int64]) -> int:
    """Return the index of the first bound >= `value`, or the number of bounds."""
    for i in range(bounds.size):
        if value <= bounds[i]:
            return i
    return bounds.size


@kernel
def count_puts(
    rows: npt.NDArray[Any],
    count: int,
    delivered: bool,
    puts: npt.NDArray[np.int64],
    traffic: npt.NDArray[np.int64],
    delays: npt.NDArray[np.int64],
) -> Any:
    """Count the stored rows of a batch; return (messages, bytes).

    Args:
        delivered: Whether the batch contains deliveries of pending messages.
        puts: (topics, 2): messages and bytes.
        traffic: (topics, TYPES, 2 + size buckets): messages, bytes, messages by record size.
        delays: (topics, 1 + delay buckets): sum of requested delays in seconds, and timers by
            requested delay, under their real topic.
    """
    messages, size = 0, np.int64(0)
    for i in range(count):
        row = rows[i]
        if row["status"] != 0:
            continue
        topic, record_size = row["topic_index"], np.int64(row["record_size"])
        puts[topic, 0] += 1
        puts[topic, 1] += record_size
        messages += 1
        size += record_size
        counted = traffic[topic, message_type(row, delivered)]
        counted[0] += 1
        counted[1] += record_size
        counted[2 + bucket(record_size, SIZE_BOUNDS)] += 1
        if row["out_ms"] >= 0 and row["real_topic_index"] >= 0 and not delivered:
            delay_s = max((row["out_ms"] - row["born_ms"]) // 1_000, 0)
            requested = delays[row["real_topic_index"]]
            requested[0] += delay_s
            requested[1 + bucket(delay_s, DELAY_BOUNDS_S)] += 1
    return messages, size
