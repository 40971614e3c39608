"""Compiled enqueueing of level messages in place.

read_levels   fill TIMED rows from the units of a level's queue and their records; find the
              positions of the name DELAY, which becomes DELAy (`LevelRecords.set_letter`)

If a message that an Apache broker's timers deliver has a DELAY, Apache delays it again. Therefore
the property is renamed while timers own the message. One byte changes in the mapped file, so a
crash leaves one of two valid records. The name is not changed if the record has a CRC of its
properties, both names, or neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from delayed_delivery.kernels.redirected import CRC32, UNDERSCORE, D, R, take_target
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, is_named, is_topic
from message_store.kernels.scan import read_frame
from message_store.layout import NAME_END
from message_store.queues.topic_table import TopicArrays
from timer_store.kernels.enqueue import Scratch, set_topic
from timer_store.layout import TIMED_PLAIN, UPPER_Y, Rows

DELA = np.frombuffer(b"DELA", np.uint8).copy()
CASE_BIT = 32  # differs between "Y" and "y"
SCHEDULE, QUEUE_ID = range(2)  # indexes of the numbers of `read_levels`


@kernel
def is_delay(data: Bytes, pos: int, end: int) -> bool:
    """Return whether an entry is DELAY or DELAy with a value."""
    letter = pos + DELA.size
    if end - letter < 3 or data[letter + 1] != NAME_END:  # the letter, NAME_END, and a value
        return False
    # one comparison for both cases of the letter
    if data[letter] | CASE_BIT != UPPER_Y | CASE_BIT:
        return False
    return is_named(data, pos, DELA)


@kernel
def read_level_text(data: Bytes, pos: int, end: int, text: Any) -> int:
    """Read the target from a property text; return the position of the last letter of DELAY.

    -1 if the name must not change: no DELAY, several, or a CRC of the properties.
    """
    text["queue_id"], text["topic_pos"], text["topic_len"] = -1, 0, 0
    name_pos, names, has_crc = np.int64(-1), 0, False
    while pos < end:
        until = entry_end(data, pos, end)
        first = data[pos]
        if first == D and is_delay(data, pos, until):
            name_pos = pos + DELA.size
            names += 1
        elif first == R:
            take_target(data, pos, until, text)
        elif first == UNDERSCORE and is_named(data, pos, CRC32):
            has_crc = True
        pos = until + 1
    # with several names it is not clear which one counts; with a CRC a changed letter is damage
    return name_pos if names == 1 and not has_crc else np.int64(-1)


@kernel
def read_levels(
    data: Bytes,
    span: Any,
    units: Rows,
    arrays: TopicArrays,
    numbers: Any,
    scratch: Scratch,
    timed: Rows,
    name_at: Any,
) -> int:
    """Make a row of each of `units`, without the due times, which the caller sets.

    Args:
        data: the bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        units: (n,) message_store.layout.UNIT of one level's queue.
        numbers: (2,) i8: topic index of the schedule topic; queue id.
        timed: (n,) layout.TIMED out; the row of an unreadable record has no topic.
        name_at: (n,) i8 out: log offset of the last letter of DELAY, -1: it must not change.

    Returns the number of records whose name must not change.
    """
    kept, frame, text = 0, scratch.frames[0], scratch.text[0]
    for i in range(units.size):
        unit, row = units[i], timed[i]
        row["phys_offset"], row["record_size"] = unit["phys_offset"], unit["size"]
        row["queue_offset"] = row["origin"] = row["topic_index"] = -1
        row["topic_hash"], row["kind"] = 0, TIMED_PLAIN
        name_at[i] = -1
        # A damaged unit may point anywhere: no byte outside the written part is read.
        pos = np.int64(unit["phys_offset"] - span[0])
        if pos < 0 or unit["size"] < 0 or pos + unit["size"] > span[1]:
            continue
        size = read_frame(data, pos, pos + unit["size"], unit["phys_offset"], frame)
        # unit and record must agree
        if size != unit["size"] or frame["queue_id"] != numbers[QUEUE_ID]:
            continue
        topic_pos = pos + frame["topic_pos"]
        if not is_topic(data, topic_pos, frame["topic_len"], arrays, numbers[SCHEDULE]):
            continue
        prop_pos = pos + frame["prop_pos"]
        name_pos = read_level_text(data, prop_pos, prop_pos + frame["prop_len"], text)
        if text["topic_len"] > 0:
            set_topic(data, text, arrays, timed, i)
        if name_pos < 0:
            kept += 1
            continue
        # a position in the log: the caller changes one byte there
        name_at[i] = span[0] + name_pos
    return kept
