"""Kernel that converts records of a retry topic to messages of its topic, with receipt handles.

    record     head  body  %RETRY%g_T  properties
    message    head  body  T           properties  POP_CK

If a record has an unsupported form, `duemq.pop.queue_reader` encodes all records in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.redirected import is_body_sound
from message_store.kernels.bytes import Bytes, copy, get_i4, get_i8, put_digits, put_i2, put_i4
from message_store.kernels.kernel import kernel
from message_store.kernels.scan import read_frame
from message_store.layout import ENTRY_END, MAGIC_V1, RECORD_AT, RECORD_FIXED_BYTES

PROPERTIES_BYTES_MAX = 32_767
OTHER_FORM = -1  # a record has an unsupported form
DIGITS_MAX = 19  # digits of the highest queue offset


@kernel
def add_handles(
    data: Bytes, topic: Bytes, handle: Bytes, frames: npt.NDArray[Any], out: Bytes
) -> int:
    """Write the messages of all records in `data`.

    Args:
        data: (bytes,) u1: records, one after another.
        topic: (bytes,) u1: topic name of at most 127 bytes.
        handle: (bytes,) u1: entry POP_CK up to the queue offset, which the kernel appends.
        frames: (1,) `message_store.layout.SCANNED`: scratch.
        out: (bytes,) u1: output, with room for all messages.
    Returns:
        Number of bytes written; `OTHER_FORM` if a record needs Python.
    """
    pos, position, frame = np.int64(0), np.int64(0), frames[0]
    while pos < data.size:
        if data.size - pos < RECORD_FIXED_BYTES:
            return OTHER_FORM
        log_offset = get_i8(data, pos + RECORD_AT.phys_offset)
        size = read_frame(data, pos, data.size, log_offset, frame)
        if size < 0 or get_i4(data, pos + RECORD_AT.magic) != MAGIC_V1:
            return OTHER_FORM
        length = np.int64(frame["prop_len"])
        if length > 0 and data[pos + size - 1] != ENTRY_END:
            return OTHER_FORM
        if not is_body_sound(data, pos, frame):
            return OTHER_FORM
        name_at = position + frame["topic_pos"]
        copy(out, position, data, pos, frame["topic_pos"])
        out[name_at - 1] = topic.size
        copy(out, name_at, topic, 0, topic.size)
        start = name_at + topic.size + 2
        copy(out, start, data, pos + frame["prop_pos"], length)
        copy(out, start + length, handle, 0, handle.size)
        end = put_digits(out, start + length + handle.size, frame["queue_offset"])
        out[end] = ENTRY_END
        end += 1
        if end - start > PROPERTIES_BYTES_MAX:
            return OTHER_FORM
        put_i2(out, start - 2, end - start)
        put_i4(out, position, end - position)
        pos += size
        position = end
    return position
