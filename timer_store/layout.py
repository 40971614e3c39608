"""Byte and column layouts of the timer store, each declared once.

On disk (big-endian, Apache 5.3.3's): units of the timer log, slots of the wheel, the checkpoint.
In memory (native): timers on their way into log and wheel, timers staged for delivery.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from message_store.layout import packer

Rows = npt.NDArray[Any]  # (n,) of one of the types below
Row = np.void  # one of them
Offsets = npt.NDArray[np.int64]  # (n,) log offsets, timer log positions, or times in ms
Mask = npt.NDArray[np.bool_]
NO_OFFSETS: Final[Offsets] = np.empty(0, np.int64)

# TimerLog.UNIT_SIZE. Apache writes 0 into the last eight bytes and never reads them.
TIMER_UNIT = np.dtype(
    [
        ("size", ">i4"),  # 52
        ("prev_pos", ">i8"),  # the unit of this slot before this one, -1: it is the first
        ("magic", ">i4"),  # MAGIC_DEFAULT | MAGIC_ROLL | MAGIC_DELETE
        ("write_ms", ">i8"),  # when it was enqueued, a multiple of the precision
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
DUE_COPIED: Final = -1  # this due_ms: settled because there is a copy of the unit further on

# TimerLog's blank record: what is left of the file, 0, the commit log's blank magic.
TIMER_BLANK = np.dtype([("size", ">i4"), ("zero", ">i8"), ("magic", ">i4")])
assert TIMER_BLANK.itemsize == 16
BLANK = packer(TIMER_BLANK)

# store/timer/Slot.java
TIMER_SLOT = np.dtype(
    [
        ("tick", ">i8"),  # slot time / precision: which lap the slot belongs to
        ("first_pos", ">i8"),
        ("last_pos", ">i8"),
        ("num", ">i4"),  # ours: units that wait in it, exactly
        ("magic", ">i4"),  # unused
    ]
)
assert TIMER_SLOT.itemsize == 32
SLOT_BYTES: Final = TIMER_SLOT.itemsize
SLOTS: Final = 7 * 86_400  # DefaultMessageStore: slots of one lap, whatever the precision
WHEEL_SLOTS: Final = 2 * SLOTS
WHEEL_BYTES: Final = WHEEL_SLOTS * SLOT_BYTES

# TimerCheckpoint; the file has 4096 bytes, the rest is zero.
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

# A slot past the byte order border.
SLOT = np.dtype(
    [
        ("tick", "i8"),
        ("first_pos", "i8"),
        ("last_pos", "i8"),
        ("num", "i4"),
        ("magic", "i4"),
    ]
)

# A unit of the timer log past the byte order border.
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

# The walk along one slot's chain, while kernels go through the files of the log: one row each.
CURSOR = np.dtype(
    [
        ("tick", "i8"),
        ("pos", "i8"),  # the next unit to look at, -1: done
        ("first", "i8"),  # of the records looked for: those of this slot
        ("end", "i8"),
        ("count", "i8"),
        ("fault", "i8"),  # 0, or FAULT_* of the unit at `pos`
    ],
    align=True,
)

# A timer on its way into the timer log and the wheel: one row each, in queue order.
TIMED = np.dtype(
    [
        ("due_ms", "i8"),  # exact: never delivered before
        ("slot_ms", "i8"),  # whose slot it joins: due_ms - 1, or a roll time before that
        ("phys_offset", "i8"),
        ("queue_offset", "i8"),  # in the timer topic's queue; -1: the unit came from elsewhere
        ("origin", "i8"),  # log offset of the timer that this record settles, -1: none
        ("record_size", "i4"),
        ("topic_hash", "i4"),  # Java hash of the real topic's name
        ("topic_index", "i4"),  # the real topic, -1: not in the topic table
        ("kind", "i4"),  # TIMED_*
    ],
    align=True,
)
TIMED_PLAIN, TIMED_MARKER, TIMED_BROKEN = 0, 1, 2  # BROKEN: no time, no target, unreadable

# A timer loaded for delivery: one row each.
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
STAGED_WAITING, STAGED_SETTLED = 0, 1
STAGED_FIRED = 2  # delivered before its time, by a fire request

# A timer inside the near stage: what STAGED has, without what is the same for all of them there.
HELD = np.dtype(
    [
        ("due_ms", "i8"),
        ("phys_offset", "i8"),
        ("pos", "i8"),
        ("write_ms", "i8"),  # ~write_ms, that is below 0: settled since it was loaded
        ("record_size", "i4"),
        ("topic_hash", "i4"),
    ],
    align=True,
)
assert HELD.itemsize == 40

# A record and what a copy of it by an Apache broker would have in common with it.
IDENTIFIED = np.dtype(
    [
        ("phys_offset", "i8"),
        ("identity", "i8"),  # hash of topic, queue, key, TIMER_OUT_MS, birth and body
        ("out_ms", "i8"),
        ("name", "i8"),  # hash of topic+key and TIMER_OUT_MS: by this a marker cancels; 0: none
        ("rolls", "i4"),  # TIMER_ROLL_TIMES, 0 without
        ("marker", "i4"),  # 1: `name` is what it cancels
    ],
    align=True,
)

# Parsed property text of a timer.
TIMER_TEXT = np.dtype(
    [
        ("out_ms", "i8"),  # TIMER_OUT_MS; this and the next two: NO_NUMBER without a legal one
        ("exact_ms", "i8"),  # DUEMQ_DUE_MS
        ("value", "i8"),  # the number behind `kind`
        ("topic_pos", "i8"),  # REAL_TOPIC
        ("name_pos", "i8"),  # the last letter of DELAY or DELAy, -1: not one of them, or both
        ("topic_len", "i4"),
        ("kind", "i4"),  # message_store.layout.TIMER_*: which of the three counts
        ("queue_id", "i4"),  # REAL_QID, -1: not usable
        ("flags", "i4"),  # TEXT_*
    ],
    align=True,
)
NO_NUMBER: Final = -(1 << 62)
DUE_MS_MAX: Final = 10**18 - 1  # 18 digits: numbers of more are no numbers
TEXT_ROLLED, TEXT_MARKER, TEXT_LEVEL = 1, 2, 4  # LEVEL: it has DELAY or DELAy

# What a due record is made of: a timer; a message in a level's queue that was transferred; a timer
# that was born with a level: for its consumer both are what the level would have delivered.
FROM_TIMER, FROM_LEVEL, FROM_ROUTE, FROM_NOTHING = 0, 1, 2, -1
UPPER_Y, LOWER_Y, NAME_AS_IS = 89, 121, 0  # DELAY; DELAy; leave it
