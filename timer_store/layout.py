"""Byte and column layouts of the timer store, each declared once.

On disk (big-endian, Apache 5.3.3's): units of the timer log, slots of the wheel, the checkpoint.
In memory (native): timers to enqueue, timers staged for delivery.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from message_store.layout import packer

Rows = npt.NDArray[np.void]  # (n,) rows of one of the types below
Row = np.void  # a single row
Offsets = npt.NDArray[np.int64]  # (n,) log offsets, timer log positions, or times in ms
Mask = npt.NDArray[np.bool_]
NO_OFFSETS: Final[Offsets] = np.empty(0, np.int64)

# TimerLog.UNIT_SIZE. Apache writes 0 into the last eight bytes, and does not read them.
TIMER_UNIT = np.dtype(
    [
        ("size", ">i4"),  # 52
        ("prev_pos", ">i8"),  # previous unit of this slot, -1 for the first
        ("magic", ">i4"),  # MAGIC_DEFAULT | MAGIC_ROLL | MAGIC_DELETE
        ("write_ms", ">i8"),  # time of the enqueue, a multiple of the precision
        ("delay_ms", ">i4"),  # slot time - write_ms; ours: due_ms - 1 - write_ms, unless it rolls
        ("phys_offset", ">i8"),  # of the record in the commit log
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),  # Java hash of REAL_TOPIC
        ("due_ms", ">i8"),  # ours: the exact due time; below 0: settled (cancelled, moved, fired)
    ]
)
assert TIMER_UNIT.itemsize == 52
UNIT_BYTES: Final = TIMER_UNIT.itemsize
UNIT = packer(TIMER_UNIT)
MAGIC_DEFAULT, MAGIC_ROLL, MAGIC_DELETE = 1, 2, 4
MAGIC_MAX: Final = 15  # TimerLog.isMagicOK
DUE_COPIED: Final = -1  # due_ms of a unit that is settled because a later slot has a copy of it

# Blank record of TimerLog: remaining bytes of the file, 0, blank magic of the commit log.
TIMER_BLANK = np.dtype([("size", ">i4"), ("zero", ">i8"), ("magic", ">i4")])
assert TIMER_BLANK.itemsize == 16
BLANK = packer(TIMER_BLANK)

# store/timer/Slot.java
TIMER_SLOT = np.dtype(
    [
        ("tick", ">i8"),  # slot time / precision; shows the lap of the slot
        ("first_pos", ">i8"),
        ("last_pos", ">i8"),
        ("num", ">i4"),  # pending units; exact, unlike Apache's
        ("magic", ">i4"),  # unused
    ]
)
assert TIMER_SLOT.itemsize == 32
SLOT_BYTES: Final = TIMER_SLOT.itemsize
SLOTS: Final = 7 * 86_400  # DefaultMessageStore: slots of one lap, for any precision
WHEEL_SLOTS: Final = 2 * SLOTS
WHEEL_BYTES: Final = WHEEL_SLOTS * SLOT_BYTES

# TimerCheckpoint; the rest of the file's 4096 bytes is zero.
TIMER_CHECK = np.dtype(
    [
        ("read_ms", ">i8"),  # lastReadTimeMs: the first slot that is not completely delivered
        ("log_pos", ">i8"),  # lastTimerLogFlushPos
        ("queue_offset", ">i8"),  # lastTimerQueueOffset: the next unit to enqueue
        ("master_queue_offset", ">i8"),  # masterTimerQueueOffset
        ("state_version", ">i8"),
        ("version_ms", ">i8"),
        ("version_counter", ">i8"),
    ]
)
assert TIMER_CHECK.itemsize == 56
TIMER_CHECK_BYTES: Final = 4096

# A slot of the wheel in native byte order.
SLOT = np.dtype(
    [
        ("tick", "i8"),
        ("first_pos", "i8"),
        ("last_pos", "i8"),
        ("num", "i4"),
        ("magic", "i4"),
    ]
)

# A unit of the timer log in native byte order.
LOGGED = np.dtype(
    [
        ("pos", "i8"),
        ("prev_pos", "i8"),
        ("write_ms", "i8"),
        ("slot_ms", "i8"),  # write_ms + delay_ms
        ("phys_offset", "i8"),
        ("due_ms", "i8"),
        ("record_size", "i4"),
        ("topic_hash", "i4"),
        ("magic", "i4"),
        ("pad", "i4"),
    ],
    align=True,
)

# State of a walk along the chain of one slot, across the files of the log.
CURSOR = np.dtype(
    [
        ("tick", "i8"),
        ("pos", "i8"),  # the next unit to examine, -1: done
        ("first", "i8"),  # records to find in this slot: `first` to `end`; `count`: not found yet
        ("end", "i8"),
        ("count", "i8"),
        ("fault", "i8"),  # 0, or FAULT_* of the unit at `pos`
    ],
    align=True,
)

# A timer to be enqueued; rows are in queue order.
TIMED = np.dtype(
    [
        ("due_ms", "i8"),  # exact: not delivered before
        ("slot_ms", "i8"),  # time of its slot: due_ms - 1, or the roll time before that
        ("phys_offset", "i8"),
        ("queue_offset", "i8"),  # in the timer queue; -1: not from the timer queue
        ("origin", "i8"),  # log offset of the timer that this record settles, -1: none
        ("record_size", "i4"),
        ("topic_hash", "i4"),  # Java hash of the real topic's name
        ("topic_index", "i4"),  # the real topic, -1: not in the topic table
        ("kind", "i4"),  # TIMED_*
    ],
    align=True,
)
TIMED_PLAIN, TIMED_MARKER, TIMED_BROKEN = 0, 1, 2  # BROKEN: no time, no target, unreadable

# A timer loaded for delivery.
STAGED = np.dtype(
    [
        ("due_ms", "i8"),
        ("phys_offset", "i8"),
        ("pos", "i8"),  # its unit in the timer log
        ("write_ms", "i8"),  # for TIMER_ENQUEUE_MS
        ("record_size", "i4"),
        ("topic_hash", "i4"),
        ("magic", "i4"),
        ("state", "i4"),  # STAGED_*
    ],
    align=True,
)
STAGED_PENDING, STAGED_SETTLED = 0, 1
STAGED_FIRED = 2  # delivered before its due time, by a fire request

# A timer in the near stage: STAGED without the fields that are equal for all timers there.
STAGE_ROW = np.dtype(
    [
        ("due_ms", "i8"),
        ("phys_offset", "i8"),
        ("pos", "i8"),
        ("write_ms", "i8"),  # its complement (below 0) if the timer was settled since it was loaded
        ("record_size", "i4"),
        ("topic_hash", "i4"),
    ],
    align=True,
)
assert STAGE_ROW.itemsize == 40

# A record with hashes that are equal for copies of it by an Apache broker.
IDENTIFIED = np.dtype(
    [
        ("phys_offset", "i8"),
        ("identity", "i8"),  # hash of topic, queue, key, TIMER_OUT_MS, birth and body
        ("out_ms", "i8"),
        ("name", "i8"),  # hash of topic+key and TIMER_OUT_MS: by this a marker cancels; 0: none
        ("rolls", "i4"),  # TIMER_ROLL_TIMES; 0: absent
        ("marker", "i4"),  # 1: a marker; `name` is that of its target
    ],
    align=True,
)

# Parsed property text of a timer.
TIMER_TEXT = np.dtype(
    [
        ("out_ms", "i8"),  # TIMER_OUT_MS; this and the next two: NO_NUMBER if absent or invalid
        ("exact_ms", "i8"),  # DUEMQ_DUE_MS
        ("value", "i8"),  # the number of `kind`
        ("topic_pos", "i8"),  # REAL_TOPIC
        ("name_pos", "i8"),  # last letter of DELAY or DELAy; -1: neither, or both
        ("topic_len", "i4"),
        ("kind", "i4"),  # message_store.layout.TIMER_*: the property with the due time
        ("queue_id", "i4"),  # REAL_QID; -1: absent or invalid
        ("flags", "i4"),  # TEXT_*
    ],
    align=True,
)
NO_NUMBER: Final = -(1 << 62)
DUE_MS_MAX: Final = 10**18 - 1  # 18 digits; longer numbers are invalid
TEXT_ROLLED, TEXT_MARKER, TEXT_LEVEL = 1, 2, 4  # LEVEL: has DELAY or DELAy

# Kinds of source records: a timer; a transferred message in a level's queue; a routed message,
# which was sent with a level. The last two are delivered as by the level service.
FROM_TIMER, FROM_LEVEL, FROM_ROUTE, FROM_NOTHING = 0, 1, 2, -1
UPPER_Y, LOWER_Y = 89, 121  # last letter: of DELAY, of DELAy
