"""Compiled lookup of the levels that timers were sent with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import DELAY_NAME, MOVED_NAME, find_value, parse_level
from message_store.kernels.scan import read_frame
from message_store.layout import TIMER_NONE
from timer_store.kernels.due_time import read_text
from timer_store.kernels.enqueue import Scratch
from timer_store.layout import NO_NUMBER

Rows = npt.NDArray[Any]


@kernel
def levels_of(data: Bytes, span: Any, rows: Rows, scratch: Scratch, out: Any) -> None:
    """Set out (n,) i8 to the level with which each timer was sent, 0 if none.

    Args:
        data: Bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        rows: (n,) TIMED; rows whose record is in another file are skipped.
    """
    frame, text = scratch.frames[0], scratch.text[0]
    for i in range(rows.size):
        row = rows[i]
        # A damaged unit may point anywhere: no byte outside the written part is read.
        pos = np.int64(row["phys_offset"] - span[0])
        if pos < 0 or row["record_size"] < 0 or pos + row["record_size"] > span[1]:
            continue
        out[i] = 0
        if read_frame(data, pos, pos + row["record_size"], row["phys_offset"], frame) < 0:
            continue
        start, size = pos + frame["prop_pos"], np.int64(frame["prop_len"])
        read_text(data, start, start + size, text)
        # A routed message has DUEMQ_DUE_MS and no timer property of its producer.
        if text["exact_ms"] == NO_NUMBER or text["kind"] != TIMER_NONE:
            continue
        # DELAy: the name that routing gives to DELAY
        value = find_value(data, start, size, MOVED_NAME)
        if value[1] == 0:
            value = find_value(data, start, size, DELAY_NAME)
        if value[1] != 0:
            out[i] = max(parse_level(data, np.int64(value[0]), np.int64(value[1])), 0)
