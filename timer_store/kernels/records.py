"""Records found by log offset."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.scan import read_frame
from timer_store.layout import Rows


@kernel
def units_at(data: Bytes, span: Any, offsets: Any, frames: Rows, units: Rows, queues: Any) -> None:
    """Make a queue unit of the record at each log offset; size 0 where there is none.

    Args:
        data: the bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        offsets: (n,) i8: log offsets in this file.
        frames: (1,) layout.SCANNED, scratch.
        units: (n,) message_store.layout.UNIT out.
        queues: (n,) i8 out: each record's own queue offset, -1 where there is none.
    """
    for i in range(offsets.size):
        pos = np.int64(offsets[i] - span[0])
        units[i]["phys_offset"], units[i]["size"], units[i]["tags_code"] = offsets[i], 0, 0
        queues[i] = -1
        if pos < 0 or pos >= span[1]:
            continue
        size = read_frame(data, pos, span[1], offsets[i], frames[0])
        if size > 0:
            units[i]["size"], queues[i] = size, frames[0]["queue_offset"]
