"""Compiled readers of records at given log offsets.

read_rows        columns of the records
exact_times      due times of timers with an exact time, without their columns
"""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, has_value, is_named
from message_store.kernels.properties import equals, parse_number
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic
from message_store.queues.topic_table import TopicArrays
from timer_store.layout import DUE_MS_MAX

OUT_MS, DELIVER_MS, DUE_MS, DELAY = (
    np.frombuffer(name, np.uint8).copy()
    for name in (b"TIMER_OUT_MS", b"TIMER_DELIVER_MS", b"DUEMQ_DUE_MS", b"TIMER_DELAY_")
)
NO_NUMBER = -(1 << 62)
UNUSUAL = -1  # another record, or one whose due time has another form


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


@kernel
def exact_times(data: Bytes, base: int, units: Any, topic: Bytes, row: Any, out: Any) -> None:
    """Fill (n,) i8 with the due times of the records of timer units, or UNUSUAL.

    Args:
        data: Bytes of the log; data[0] is log offset `base`.
        units: (n,) TIMER_UNIT, native; UNUSUAL if no record of its size is at its log offset.
        topic: Name of the topic of pending timers; UNUSUAL for records of others.
        row: (1,) SCANNED, scratch.
    """
    for i in range(out.size):
        out[i] = UNUSUAL
        pos = np.int64(units[i]["phys_offset"] - base)
        if pos < 0:
            continue
        size = read_frame(data, pos, data.size, units[i]["phys_offset"], row[0])
        if size <= 0 or size != units[i]["record_size"]:
            continue
        if equals(data, pos + row[0]["topic_pos"], np.int64(row[0]["topic_len"]), topic):
            start = pos + row[0]["prop_pos"]
            out[i] = exact_time(data, start, start + row[0]["prop_len"])


@kernel
def exact_time(data: Bytes, pos: int, end: int) -> int:
    """Return the due time in the properties data[pos:end] of a timer, or UNUSUAL.

    The due times of `scan.columns`, of timers with an exact time and without a delay.
    """
    out_ms = deliver_ms = due_ms = np.int64(NO_NUMBER)
    while pos < end:
        stop = entry_end(data, pos, end)
        # of several properties of one name, the last one with a value applies
        if has_value(data, pos, stop, OUT_MS):
            out_ms = parse_number(data, pos + OUT_MS.size + 1, stop, NO_NUMBER)
        elif has_value(data, pos, stop, DELIVER_MS):
            deliver_ms = parse_number(data, pos + DELIVER_MS.size + 1, stop, NO_NUMBER)
        elif has_value(data, pos, stop, DUE_MS):
            due_ms = parse_number(data, pos + DUE_MS.size + 1, stop, NO_NUMBER)
        elif stop - pos >= DELAY.size and is_named(data, pos, DELAY):
            return UNUSUAL
        pos = stop + 1
    if due_ms == NO_NUMBER:  # the broker writes it into copies only
        due_ms = deliver_ms
    if out_ms < 0 or due_ms < 0 or max(due_ms, out_ms + 1) > DUE_MS_MAX:
        return UNUSUAL
    return max(due_ms, out_ms + 1)
