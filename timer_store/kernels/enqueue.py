"""Compiled enqueue: from the put of a timer to its slot.

redirect         put hook: redirects rows with timer properties to the timer topic
from_put         stage 1: TIMED rows of a batch that was just appended
from_records     stage 1: TIMED rows of units of the timer queue, with their records in the log
units_at         units of records that are named by their log offset
survey           stage 2: slots of TIMED rows
count_pending    counts of TIMED rows

`from_put` and `from_records` return the same rows for the same messages. A message that is not a
timer becomes a TIMED_BROKEN row, and the kernel continues.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.later_copies import TIMER_BYTES
from message_store.kernels.bytes import Bytes
from message_store.kernels.encode import PROPERTY_BYTES_MAX, has_queue_offset, property_bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.names import is_topic
from message_store.kernels.properties import java_hash
from message_store.kernels.scan import read_frame
from message_store.kernels.topics import find_topic, hash_name
from message_store.layout import (
    PROP_REAL_TOPIC,
    PROP_TIMER_DEL,
    PROP_TIMER_OUT,
    PROP_TIMER_STALE,
    SYS_COMMIT,
    SYS_TRANSACTION_MASK,
    TIMER_ILLEGAL,
    TIMER_NONE,
)
from message_store.queues.topic_table import TopicArrays
from timer_store.kernels.due_time import due_of, read_text, requested_ms
from timer_store.layout import (
    DUE_MS_MAX,
    NO_NUMBER,
    TEXT_MARKER,
    TIMED_BROKEN,
    TIMED_MARKER,
    TIMED_PLAIN,
    Rows,
)

LONG_MAX: Final = 2**63 - 1  # `np.iinfo` in a kernel would import 5 MB of Numba at the start

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

PERCENT = ord("%")  # first byte of %RETRY% and %DLQ% topics
STALE_FLAGS = PROP_TIMER_OUT | PROP_REAL_TOPIC | PROP_TIMER_STALE
GROWTH_BYTES = TIMER_BYTES  # maximum growth of a timer's text until it is delivered


class Context(NamedTuple):
    """Values that all timers of a store share."""

    timer: int  # topic index of the timer topic
    precision_ms: int


class Scratch(NamedTuple):
    """Working memory, because kernels do not allocate."""

    frames: Rows  # (1,) message_store.layout.SCANNED
    text: Rows  # (1,) TIMER_TEXT


class Cursors(NamedTuple):
    """Values that all slots of a survey depend on, in ms; see `timer_store.log.slot_choice`."""

    read_ms: int
    staged_ms: int
    window_ms: int
    precision_ms: int


# -- put hook -------------------------------------------------------------------------------------


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


# -- stage 1 --------------------------------------------------------------------------------------


@kernel
def set_topic(data: Bytes, text: Any, arrays: TopicArrays, timed: Rows, start: int) -> None:
    """Set index and hash of the real topic; try the topic of the previous row first."""
    pos, size = text["topic_pos"], np.int64(text["topic_len"])
    if start > 0 and is_topic(data, pos, size, arrays, timed[start - 1]["topic_index"]):
        timed[start]["topic_index"] = timed[start - 1]["topic_index"]
        timed[start]["topic_hash"] = timed[start - 1]["topic_hash"]
        return
    timed[start]["topic_index"] = find_topic(data, pos, size, arrays)
    timed[start]["topic_hash"] = java_hash(data, pos, pos + size)


@kernel
def set_known_topic(index: int, arrays: TopicArrays, timed: Rows, position: int) -> None:
    """Set index and hash of a real topic that a row names by its index."""
    timed[position]["topic_index"] = index
    if position > 0 and timed[position - 1]["topic_index"] == index:
        timed[position]["topic_hash"] = timed[position - 1]["topic_hash"]
        return
    start = np.int64(arrays.topics[index]["name_pos"])
    end = start + arrays.topics[index]["name_len"]
    timed[position]["topic_hash"] = java_hash(arrays.names, start, end)


@kernel
def set_timed(row: Any, due_ms: int, prepared_offset: int, text: Any) -> None:
    """Set time, kind and origin of a row whose topic is set."""
    # -(offset + 1) names a record, 0 and other numbers do not
    row["origin"] = -(prepared_offset + 1) if prepared_offset < 0 else -1
    if due_ms < 0 or text["queue_id"] < 0:
        row["kind"], row["due_ms"], row["slot_ms"] = TIMED_BROKEN, 0, 0
        return
    # a slot covers the times after its start up to its end, so that of due_ms is that of due_ms - 1
    row["due_ms"], row["slot_ms"] = due_ms, due_ms - 1
    row["kind"] = TIMED_MARKER if text["flags"] & TEXT_MARKER else TIMED_PLAIN


@kernel
def set_broken(row: Any) -> None:
    """Make a row that is not a timer."""
    row["due_ms"] = row["slot_ms"] = row["topic_hash"] = 0
    row["topic_index"] = row["origin"] = -1
    row["kind"] = TIMED_BROKEN


@kernel
def read_put(row: Any, staging: Bytes, text: Any) -> None:
    """Read the timer properties of a PUT row from its columns, or from its text if absent there.

    The encoder writes the columns after the text, so they take precedence.
    """
    if row["prop_flags"] & PROP_TIMER_STALE or row["real_topic_index"] < 0 or row["out_ms"] < 0:
        pos = np.int64(row["prop_pos"])
        read_text(staging, pos, pos + row["prop_len"], text)
    else:
        text["exact_ms"], text["topic_len"] = NO_NUMBER, 0
        text["kind"] = row["timer_kind"]
        text["value"] = row["timer_value"] if row["timer_kind"] > TIMER_NONE else NO_NUMBER
        text["flags"] = TEXT_MARKER if row["prop_flags"] & PROP_TIMER_DEL else 0
    # columns that the encoder writes after the text
    if row["out_ms"] >= 0:
        text["out_ms"] = row["out_ms"]
    if row["due_ms"] >= 0:
        text["exact_ms"] = row["due_ms"]
    if row["real_topic_index"] >= 0:
        text["queue_id"] = row["real_queue_id"]


@kernel
def from_put(
    rows: Rows,
    count: int,
    staging: Bytes,
    arrays: TopicArrays,
    context: Context,
    text: Rows,
    timed: Rows,
) -> int:
    """Make rows of the stored timers among rows[:count]; return their number.

    Args:
        text: (1,) layout.TIMER_TEXT, scratch.
        timed: (n,) layout.TIMED, n >= count.
    """
    n = 0
    for i in range(count):
        row = rows[i]
        # queue 0 is the only queue of the timer topic
        if row["topic_index"] != context.timer or row["status"] != 0 or row["queue_id"] != 0:
            continue
        if not has_queue_offset(row["sys_flag"]):  # a half message is in no queue
            continue
        timed_row = timed[n]
        read_put(row, staging, text[0])
        timed_row["phys_offset"], timed_row["queue_offset"] = (
            row["phys_offset"],
            row["queue_offset"],
        )
        timed_row["record_size"] = row["record_size"]
        if row["real_topic_index"] >= 0:
            set_known_topic(row["real_topic_index"], arrays, timed, n)
        elif text[0]["topic_len"] > 0:
            set_topic(staging, text[0], arrays, timed, n)
        else:
            set_broken(timed_row)
            text[0]["queue_id"] = -1
        due_ms = due_of(text[0], row["store_ms"], context.precision_ms)
        set_timed(timed_row, due_ms, row["prepared_offset"], text[0])
        n += 1
    return n


@kernel
def from_records(
    data: Bytes,
    span: Any,
    units: Rows,
    arrays: TopicArrays,
    context: Context,
    first_offset: int,
    scratch: Scratch,
    timed: Rows,
) -> None:
    """Make a row of each of `units`.

    Args:
        data: the bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        units: (n,) message_store.layout.UNIT of the timer queue.
        first_offset: queue offset of units[0]; below 0: the units are not from the queue.
        timed: (n,) layout.TIMED out.
    """
    frame, text = scratch.frames[0], scratch.text[0]
    for i in range(units.size):
        unit, timed_row = units[i], timed[i]
        timed_row["phys_offset"], timed_row["queue_offset"] = unit["phys_offset"], first_offset + i
        timed_row["record_size"] = unit["size"]
        set_broken(timed_row)  # until the record proves to be a timer
        # A damaged unit may point anywhere: no byte outside the written part is read.
        pos = np.int64(unit["phys_offset"] - span[0])
        if pos < 0 or unit["size"] < 0 or pos + unit["size"] > span[1]:
            continue
        size = read_frame(data, pos, pos + unit["size"], unit["phys_offset"], frame)
        # Unit and record must agree on size, queue and offset, or one of them is damaged.
        if size != unit["size"] or frame["queue_id"] != 0:
            continue
        if first_offset >= 0 and frame["queue_offset"] != first_offset + i:
            continue
        if not is_topic(data, pos + frame["topic_pos"], frame["topic_len"], arrays, context.timer):
            continue
        prop_pos = pos + frame["prop_pos"]
        read_text(data, prop_pos, prop_pos + frame["prop_len"], text)
        if text["topic_len"] > 0:
            set_topic(data, text, arrays, timed, i)
        else:
            text["queue_id"] = -1
        due_ms = due_of(text, frame["store_ms"], context.precision_ms)
        set_timed(timed_row, due_ms, frame["prepared_offset"], text)


@kernel
def units_at(data: Bytes, span: Any, offsets: Any, frames: Rows, units: Rows, queues: Any) -> None:
    """Make a queue unit of the record at each log offset; its size is 0 where no record is.

    Args:
        data: the bytes of one log file.
        span: (log offset of data[0], bytes of data that are written).
        offsets: (n,) i8: log offsets in this file.
        frames: (1,) layout.SCANNED, scratch.
        units: (n,) message_store.layout.UNIT out.
        queues: (n,) i8 out: queue offset of each record, -1 where no record is.
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


# -- stage 2 --------------------------------------------------------------------------------------


@kernel
def survey(rows: Rows, cursors: Cursors) -> tuple[int, int, bool]:
    """Set `slot_ms` of each row.

    Args:
        rows: (n,) `layout.TIMED`, n > 0.
    Returns:
        Number of rows that are TIMED_PLAIN, earliest due time or start of a slot, and whether a
        row may be in a slot that is loaded, or due before its slot begins.
    """
    plain, earliest_ms, near = 0, np.int64(LONG_MAX), False
    for index in range(rows.size):
        row = rows[index]
        due_ms = row["due_ms"]
        # the slot of a due time ends at it
        own_ms = due_ms - 1
        # beyond the roll window the timer goes into an earlier slot, whole windows before its own
        laps = max(own_ms - cursors.staged_ms, 0) // cursors.window_ms
        # an overdue timer goes into the slot that is read
        slot_ms = max(own_ms - laps * cursors.window_ms, cursors.read_ms)
        row["slot_ms"] = slot_ms
        earliest_ms = min(earliest_ms, slot_ms, due_ms)
        # the slot may be loaded already: such a timer goes into the near stage as well
        near = near or slot_ms < cursors.staged_ms + cursors.precision_ms or due_ms <= slot_ms
        if row["kind"] == TIMED_PLAIN:
            plain += 1
    return plain, earliest_ms, near


@kernel
def count_pending(rows: Rows, by_topic: npt.NDArray[np.int64], sign: int, file_bytes: int) -> int:
    """Add `sign` for each row to the counts by topic, if one file has all records.

    Args:
        rows: (n,) `layout.TIMED`, n > 0.
        by_topic: (topics + 1,) i8: counts by topic index + 1.
    Returns:
        First log offset of the file; -1: several files, or a new topic; nothing is changed.
    """
    number = rows[0]["phys_offset"] // file_bytes
    for index in range(rows.size):
        row = rows[index]
        # the counts of a file must change together
        if row["phys_offset"] // file_bytes != number or row["topic_index"] + 1 >= by_topic.size:
            return -1
    for index in range(rows.size):
        by_topic[rows[index]["topic_index"] + 1] += sign
    return number * file_bytes
