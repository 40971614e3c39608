"""One-pass parser of property text into PUT columns; `message_store.log.batch` is its twin."""

from __future__ import annotations

from typing import Any

import numpy as np

from duemq.send.kernels.header import find_name, name_table
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import equals, java_hash, parse_level, parse_number
from message_store.layout import (
    PROP_INNER_BATCH,
    PROP_REAL_TOPIC,
    PROP_SHARDED,
    PROP_TIMER_OUT,
    PROP_TIMER_STALE,
    PROP_WAIT_FALSE,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_ILLEGAL,
    TIMER_NONE,
)
from message_store.log.batch import SCHEDULE_PREFIX

UNIQ_BYTES_MAX = 255
NUMBER_BYTES_MAX = 18
NO_NUMBER = -(1 << 62)
BLANK, QUOTE, BACKSLASH, DELETE = ord(" "), ord('"'), ord("\\"), 127

# Indexes into NAMES; each is a case of `take_property`.
UNIQ_KEY, TAGS, DELAY, WAIT, SEC, MS, DELIVER, OUT = range(8)
REAL_TOPIC, REAL_QID, INNER_NUM, SHARDING_KEY, DUE, ROLLS, ENQUEUE, DEQUEUE = range(8, 16)
INNER_BASE = 16  # messages with this property or a later one are decoded in Python
NAMES = name_table(
    (
        "UNIQ_KEY",
        "TAGS",
        "DELAY",
        "WAIT",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "REAL_TOPIC",
        "REAL_QID",
        "INNER_NUM",
        "__SHARDINGKEY",
        "DUEMQ_DUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "INNER_BASE",
        # Decoded in Python: transactions, cancels of other timers, priorities, properties that the
        # broker adds.
        "TRAN_MSG",
        "TIMER_DEL_UNIQKEY",
        "_SYS_MSG_PRIORITY_",
        "MSG_REGION",
        "CLUSTER",
        "TRACE_ON",
    )
)
FALSE = np.frombuffer(b"false", np.uint8).copy()
SCHEDULE = np.frombuffer(SCHEDULE_PREFIX.encode(), np.uint8).copy()


@kernel
def needs_no_escape(data: Bytes, pos: int, end: int) -> bool:
    """Return whether a text needs no escapes in the JSON of a response."""
    for i in range(pos, end):
        if data[i] <= BLANK or data[i] >= DELETE or data[i] == QUOTE or data[i] == BACKSLASH:
            return False
    return end - pos <= UNIQ_BYTES_MAX


@kernel
def take_timer(kind: int, data: Bytes, pos: int, end: int, row: Any) -> bool:
    """Set the timer columns unless a property of higher precedence did.

    Returns:
        False if Python must decode the message.
    """
    if end - pos > NUMBER_BYTES_MAX:
        return False
    current_kind = row["timer_kind"]
    if current_kind == TIMER_ILLEGAL:  # any of the three properties may be the invalid one
        return False
    # the order of the constants is Apache's precedence
    if current_kind == TIMER_NONE or kind <= current_kind:
        value = parse_number(data, pos, end, NO_NUMBER)
        row["timer_kind"] = TIMER_ILLEGAL if value == NO_NUMBER else kind
        row["timer_value"] = 0 if value == NO_NUMBER else value
    return True


@kernel
def property_flag(case: int) -> int:
    """Return the PROP_* bit of a property."""
    if case == OUT:
        return PROP_TIMER_OUT
    if case == SHARDING_KEY:
        return PROP_SHARDED
    # the names from DUE on are written by a delivery
    if case >= DUE:
        return PROP_TIMER_STALE
    return PROP_REAL_TOPIC if case == REAL_TOPIC or case == REAL_QID else PROP_INNER_BATCH


@kernel
def take_property(case: int, data: Bytes, pos: int, end: int, row: Any) -> bool:
    """Set the columns of one property; return False if Python must decode the message."""
    if case == UNIQ_KEY:
        row["uniq_pos"] = pos
        row["uniq_len"] = end - pos
        return needs_no_escape(data, pos, end)
    if case == TAGS:
        row["tags_hash"] = java_hash(data, pos, end)
    elif case == DELAY:
        row["delay_level"] = parse_level(data, pos, end)
        return end - pos <= NUMBER_BYTES_MAX
    elif case == WAIT:
        if equals(data, pos, end - pos, FALSE):
            row["prop_flags"] |= PROP_WAIT_FALSE
        else:
            row["prop_flags"] &= ~PROP_WAIT_FALSE
    elif case == SEC:
        return take_timer(TIMER_DELAY_SEC, data, pos, end, row)
    elif case == MS:
        return take_timer(TIMER_DELAY_MS, data, pos, end, row)
    elif case == DELIVER:
        return take_timer(TIMER_DELIVER_MS, data, pos, end, row)
    elif case < INNER_BASE:
        row["prop_flags"] |= property_flag(case)
    return case < INNER_BASE


@kernel
def is_of_schedule(data: Bytes, pos: int, size: int) -> bool:
    """Return whether a name begins with the prefix of the properties of recurring schedules."""
    # the name may be longer
    return size >= SCHEDULE.size and equals(data, pos, SCHEDULE.size, SCHEDULE)


@kernel
def entry_cut(data: Bytes, pos: int, end: int) -> Any:
    """Return (end of the name or -1, end of the entry) of the entry at `pos`."""
    name_end = -1
    while pos < end and data[pos] != 2:
        # the first separator ends the name; later ones are part of the value
        if data[pos] == 1 and name_end < 0:
            name_end = pos
        pos += 1
    return name_end, pos


@kernel
def scan_properties(data: Bytes, pos: int, end: int, row: Any) -> bool:
    """Set all columns that depend on properties; return False if Python must decode the message.

    Python decodes: entries without name or value, transactions, cancels of other timers,
    priorities, a missing or malformed UNIQ_KEY, properties that the broker adds, properties of
    recurring schedules, numbers of more than 18 digits.
    """
    row["prop_flags"] = 0
    row["tags_hash"] = 0
    row["delay_level"] = 0
    row["timer_kind"] = TIMER_NONE
    row["timer_value"] = 0
    row["uniq_len"] = 0
    while pos < end:
        name_end, stop = entry_cut(data, pos, end)
        if name_end <= pos or name_end + 1 >= stop:
            return False
        # other properties change no column
        case = find_name(NAMES, data, pos, name_end - pos)
        if case < 0 and is_of_schedule(data, pos, name_end - pos):
            return False
        if case >= 0 and not take_property(case, data, name_end + 1, stop, row):
            return False
        pos = stop + 1
    return row["uniq_len"] > 0
