"""Put hook, compiled: redirects rows with timer properties to the timer topic."""

from __future__ import annotations

from typing import Any

import numpy as np

from delayed_delivery.later_copies import TIMER_BYTES
from message_store.kernels.bytes import Bytes
from message_store.kernels.encode import PROPERTY_BYTES_MAX, property_bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.topics import hash_name
from message_store.layout import (
    PROP_REAL_TOPIC,
    PROP_TIMER_DEL,
    PROP_TIMER_OUT,
    PROP_TIMER_STALE,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_ILLEGAL,
    TIMER_NONE,
)
from timer_store.layout import DUE_MS_MAX, Rows

# Indexes of the numbers of `redirect`: topic indexes, and times in ms.
TIMER, SCHEDULE, HALF, NOW_MS, MAX_DELAY_MS, PRECISION_MS, SPREAD_MS = range(7)
NUMBERS = 7

# Report of `redirect` for a row. Rows above REDIRECTED are handled in Python.
(
    UNCHANGED,  # not a timer, or due already
    REDIRECTED,
    STALE,  # its text has properties of an earlier delivery
    ILLEGAL,  # its time is not a number
    MARKER_LATE,  # a marker whose time has passed
    TOO_FAR,  # beyond the maximum delay
    TOO_LONG,  # its text has no room for the properties that a delivery adds
    DIRECT,  # sent to the timer topic by a client
) = range(8)

SECONDS_MAX = 10**15  # later than any due time, and its ms fit into 64 bits
PERCENT = ord("%")  # first byte of %RETRY% and %DLQ% topics
STALE_FLAGS = PROP_TIMER_OUT | PROP_REAL_TOPIC | PROP_TIMER_STALE
GROWTH_BYTES = TIMER_BYTES  # maximum growth of a timer's text until it is delivered


@kernel
def requested_ms(row: Any, now_ms: int) -> int:
    """Return the due time that a row requests."""
    value = np.int64(row["timer_value"])
    if row["timer_kind"] == TIMER_DELIVER_MS:
        return value
    if row["timer_kind"] == TIMER_DELAY_SEC:
        # the limits keep the product in 64 bits
        value = min(max(value, -SECONDS_MAX), SECONDS_MAX) * 1_000
    return now_ms + value


@kernel
def spread_of(row: Any, staging: Bytes, spread_ms: int) -> int:
    """Return the delay that spreads due times, 0..spread_ms; constant for a UNIQ_KEY."""
    value = hash_name(staging, np.int64(row["uniq_pos"]), np.int64(row["uniq_len"]))
    value ^= value >> np.uint64(32)  # the low bits of FNV are poorly distributed
    return np.int64(value % np.uint64(spread_ms + 1))


@kernel
def is_exempt(row: Any, topics: Any, names: Bytes, numbers: Any) -> bool:
    """Return whether a row with timer properties is refused, a half message or a level message."""
    kind = row["sys_flag"] & SYS_TRANSACTION_MASK
    if row["status"] != 0 or (kind != 0 and kind != SYS_COMMIT):
        return True
    index = row["topic_index"]
    # a level takes precedence; a row with a real topic is redirected already
    if row["delay_level"] > 0 or row["real_topic_index"] >= 0:
        return True
    if index == numbers[HALF] or index == numbers[SCHEDULE]:
        return True
    # Retries and dead letters still have the times of their first delivery.
    return row["prop_flags"] & PROP_TIMER_OUT != 0 and names[topics[index]["name_pos"]] == PERCENT


@kernel
def redirect_row(row: Any, staging: Bytes, topics: Any, numbers: Any) -> int:
    """Redirect a row that is not due yet to the timer topic; return its report."""
    if row["timer_kind"] == TIMER_ILLEGAL:
        return ILLEGAL
    now_ms, precision_ms = numbers[NOW_MS], numbers[PRECISION_MS]
    due_ms = requested_ms(row, now_ms)
    is_marker = row["prop_flags"] & PROP_TIMER_DEL != 0
    # due already: an ordinary message; a marker would come too late for its target
    if due_ms <= now_ms:
        return MARKER_LATE if is_marker else UNCHANGED
    if due_ms - now_ms > numbers[MAX_DELAY_MS] or due_ms > DUE_MS_MAX - numbers[SPREAD_MS]:
        return TOO_FAR
    # Python removes the properties of the earlier delivery
    if row["prop_flags"] & STALE_FLAGS:
        return STALE
    if numbers[SPREAD_MS] > 0 and not is_marker:
        due_ms += spread_of(row, staging, numbers[SPREAD_MS])
        row["due_ms"] = due_ms
    # An Apache broker delivers at the end of the slot of TIMER_OUT_MS.
    row["out_ms"] = (due_ms - 1) // precision_ms * precision_ms
    row["real_topic_index"], row["real_queue_id"] = row["topic_index"], row["queue_id"]
    row["topic_index"], row["queue_id"] = numbers[TIMER], 0
    # the delivery adds properties; a record that has no room for them could never be delivered
    if property_bytes(row, staging, topics) + GROWTH_BYTES > PROPERTY_BYTES_MAX:
        return TOO_LONG
    return REDIRECTED


@kernel
def redirect(
    rows: Rows, count: int, staging: Bytes, topics: Any, names: Bytes, numbers: Any, report: Bytes
) -> Any:
    """Redirect rows with timer properties that are not due yet to the timer topic.

    Args:
        topics, names: Arrays of the same names in TopicArrays.
        numbers: (NUMBERS,) i8: topic indexes of timer, schedule and half topic; now, maximum delay,
            precision and spread in ms.
        report: (n,) u1 out, n >= count: UNCHANGED ... DIRECT.

    Returns (redirected rows, rows to handle in Python).
    """
    redirected, unhandled = 0, 0
    for i in range(count):
        row = rows[i]
        report[i] = UNCHANGED
        is_direct = row["topic_index"] == numbers[TIMER]
        if row["timer_kind"] == TIMER_NONE and not is_direct:
            continue
        if is_exempt(row, topics, names, numbers):
            continue
        # a client sent it to the timer topic itself
        made = DIRECT if is_direct else redirect_row(row, staging, topics, numbers)
        report[i] = made
        redirected += made == REDIRECTED
        unhandled += made > REDIRECTED
    return redirected, unhandled
