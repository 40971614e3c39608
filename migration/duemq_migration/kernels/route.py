"""Put hook of routed levels, compiled: redirects their messages to the timer topic."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.encode import PROPERTY_BYTES_MAX, property_bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end
from message_store.layout import (
    DELAY_ILLEGAL,
    PROP_REAL_TOPIC,
    PROP_TIMER_DEL,
    PROP_TIMER_OUT,
    PROP_TIMER_STALE,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
    TIMER_NONE,
)
from timer_store.kernels.transfer import DELA, is_delay
from timer_store.layout import DUE_MS_MAX, LOWER_Y, UPPER_Y

Rows = npt.NDArray[Any]
D = ord("D")

# Indexes of the numbers of `route`: topic indexes, and times in ms.
TIMER, SCHEDULE, HALF, NOW_MS, PRECISION_MS = range(5)
NUMBERS = 5

# Report of `route` for a row: stays a level message, is a timer now, is handled in Python.
UNCHANGED, ROUTED, UNHANDLED = range(3)
RULE_LEVEL, RULE_TOPIC, RULE_DELAY = range(3)  # columns of the rules of `route`
NOT_ROUTED = -1  # in place of a delay: the level service delivers the level
STALE_FLAGS = PROP_TIMER_OUT | PROP_REAL_TOPIC | PROP_TIMER_STALE
GROWTH_BYTES = 120  # as of any timer: see `timer_store.kernels.enqueue`


@kernel
def is_exempt(row: Any, numbers: Any) -> bool:
    """Return whether a row with a level is not routed: invalid, internal, or redirected already."""
    # The delay of a transaction counts from its commit: half and rollback records stay.
    kind = row["sys_flag"] & SYS_TRANSACTION_MASK
    if row["status"] != 0 or (kind != 0 and kind != SYS_COMMIT):
        return True
    if row["delay_level"] <= 0 or row["delay_level"] == DELAY_ILLEGAL:
        return True
    if row["prop_flags"] & PROP_TIMER_DEL or row["real_topic_index"] >= 0:
        return True
    index = row["topic_index"]
    return index == numbers[TIMER] or index == numbers[SCHEDULE] or index == numbers[HALF]


@kernel
def delay_of(row: Any, level: int, delays_ms: Any, rules: Any) -> int:
    """Return the delay of a row in ms, NOT_ROUTED if the level service delivers its level."""
    delay_ms = delays_ms[level]
    # rules refine levels that are routed at all
    if delay_ms != NOT_ROUTED:
        for i in range(rules.shape[0]):
            if rules[i, RULE_LEVEL] == level and rules[i, RULE_TOPIC] == row["topic_index"]:
                return rules[i, RULE_DELAY]
    return delay_ms


@kernel
def find_name(staging: Bytes, pos: int, end: int) -> int:
    """Return the position of the last letter of DELAY in a property text.

    -1 unless the text has exactly one DELAY and no DELAy.
    """
    position, names = np.int64(-1), 0
    while pos < end:
        until = entry_end(staging, pos, end)
        if staging[pos] == D and is_delay(staging, pos, until):
            position = pos + DELA.size
            names += 1
        pos = until + 1
    return position if names == 1 and staging[position] == UPPER_Y else np.int64(-1)


@kernel
def route_row(row: Any, staging: Bytes, topics: Any, delay_ms: int, numbers: Any) -> int:
    """Turn a row into a timer; return UNCHANGED if its delivery would differ from the level's."""
    pos = np.int64(row["prop_pos"])
    name_pos = find_name(staging, pos, pos + row["prop_len"])
    due_ms = numbers[NOW_MS] + delay_ms
    # without exactly one DELAY there is no letter to change
    if name_pos < 0 or due_ms > DUE_MS_MAX:
        return UNCHANGED
    # Apache's slot, before the due time; due_ms has the exact millisecond.
    row["out_ms"] = (due_ms - 1) // numbers[PRECISION_MS] * numbers[PRECISION_MS]
    row["real_topic_index"], row["real_queue_id"] = row["topic_index"], row["queue_id"]
    row["due_ms"] = due_ms
    # The encoder adds properties: without room for them the row stays a level message.
    if property_bytes(row, staging, topics) + GROWTH_BYTES > PROPERTY_BYTES_MAX:
        row["out_ms"] = row["due_ms"] = row["real_topic_index"] = -1
        row["real_queue_id"] = 0
        return UNCHANGED
    row["due_delay_ms"] = delay_ms  # counts from the store time, which the encoder adds
    row["topic_index"], row["queue_id"] = numbers[TIMER], 0
    row["delay_level"] = 0
    # DELAY becomes DELAy in place, so that no broker delays the delivered message again.
    staging[name_pos] = LOWER_Y
    return ROUTED


@kernel
def route(
    rows: Rows,
    count: int,
    staging: Bytes,
    topics: Any,
    delays_ms: Any,
    rules: Any,
    numbers: Any,
    report: Bytes,
) -> Any:
    """Redirect rows with a routed level to the timer topic.

    Args:
        delays_ms: (levels + 1,) i8: delays of routed levels, NOT_ROUTED for others.
        rules: (n, 3) i8, columns RULE_*: the delay in ms replaces that of the level.
        numbers: (NUMBERS,) i8: topic indexes of timer, schedule and half topic; now and the
            precision in ms.
        report: (n,) u1 out, n >= count: UNCHANGED, ROUTED, UNHANDLED.

    Returns (routed rows, rows to handle in Python).
    """
    routed, unhandled = 0, 0
    for i in range(count):
        row = rows[i]
        report[i] = UNCHANGED
        if row["delay_level"] == 0 or is_exempt(row, numbers):
            continue
        level = min(np.int64(row["delay_level"]), delays_ms.size - 1)
        delay_ms = delay_of(row, level, delays_ms, rules)
        if delay_ms == NOT_ROUTED:
            continue
        # The caller removes timer properties and rewrites a level above the highest.
        stale = row["timer_kind"] != TIMER_NONE or row["prop_flags"] & STALE_FLAGS != 0
        if stale or level != row["delay_level"]:
            report[i] = UNHANDLED
            unhandled += 1
            continue
        report[i] = route_row(row, staging, topics, delay_ms, numbers)
        routed += report[i] == ROUTED
    return routed, unhandled
