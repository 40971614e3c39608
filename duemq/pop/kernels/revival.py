"""Kernels of revival: records of popped messages to rows of a batch for their retry topic.

    record      head  body  topic  properties
    row               copy         entries without delays, then 1ST_POP_TIME if it is missing

Reading stops at a damaged record, or at properties that need more than a copy. Then
`duemq.pop.revival.retry_copies` makes all copies of the checkpoint in Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.redirected import (
    DEQUEUE_MS,
    DUE_MS,
    ENQUEUE_MS,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    UNDERSCORE,
    D,
    R,
    T,
    is_body_sound,
    set_message,
)
from message_store.kernels.bytes import Bytes, copy
from message_store.kernels.kernel import kernel
from message_store.kernels.names import entry_end, find_byte, has_name, is_named
from message_store.kernels.properties import equals, java_hash, parse_number
from message_store.kernels.scan import read_frame
from message_store.layout import (
    ENTRY_END,
    NAME_END,
    PROP_PRIORITY,
    PROP_REAL_TOPIC,
    PROP_SHARDED,
    PROP_TIMER_OUT,
    PROP_TIMER_STALE,
    PROP_WAIT_FALSE,
    TIMER_DELIVER_MS,
)

KEPT, DROPPED, FIRST_POP, PLAIN = range(4)
"""Outcomes of an entry.

KEPT: copied; DROPPED: omitted; FIRST_POP: copied, the entry is 1ST_POP_TIME; PLAIN: needs Python.
"""
NUMBER_BYTES_MAX = 18
RECONSUME_TIMES_MAX = 0x7FFF_FFFF
NO_NUMBER = -(1 << 62)
ONE, P, U, W, ZERO, NINE = b"1PUW09"
LETTER_I = ord("I")


def _name(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8).copy()


UNIQ_KEY, WAIT, FALSE = _name(b"UNIQ_KEY"), _name(b"WAIT"), _name(b"false")
POP_CK, FIRST, SHARDING_KEY = _name(b"POP_CK"), _name(b"1ST_POP_TIME"), _name(b"__SHARDINGKEY")
PRIORITY = _name(b"_SYS_MSG_PRIORITY_")
DELAY, INNER, TRAN_MSG = _name(b"DELAY"), _name(b"INNER_"), _name(b"TRAN_MSG")
TIMER, SECONDS, MS = _name(b"TIMER_"), _name(b"TIMER_DELAY_SEC"), _name(b"TIMER_DELAY_MS")
DELIVER, OUT, ROLLS = _name(b"TIMER_DELIVER_MS"), _name(b"TIMER_OUT_MS"), _name(b"TIMER_ROLL_TIMES")


class CopyContext(NamedTuple):
    """Values common to all copies of a checkpoint."""

    topic_index: int  # of the retry topic
    now_ms: int
    sys_flags: int  # mask of the system flags that a copy inherits
    store_flag: int  # SYS_STORE_IPV6, or 0
    store_ip_hi: np.uint64
    store_ip_lo: np.uint64
    store_port: int
    first_pop: Bytes  # (bytes,) u1: entry 1ST_POP_TIME with its separator


class CopyOutput(NamedTuple):
    """Output of `add_copies`."""

    rows: npt.NDArray[Any]  # (n,) message_store.layout.PUT
    staging: Bytes  # (bytes,) u1, with room for all copies
    end: npt.NDArray[np.int64]  # (2,) i8: number of rows, first free position in `staging`


@kernel
def read_deliver_time(data: Bytes, pos: int, end: int, now_ms: int, row: Any) -> int:
    """Return the outcome of TIMER_DELIVER_MS: a time in the past is kept, as it delays nothing.

    Args:
        row: `message_store.layout.PUT`: receives the timer columns.
    """
    if end - pos > NUMBER_BYTES_MAX:
        return PLAIN
    value = parse_number(data, pos, end, NO_NUMBER)
    if value == NO_NUMBER or value > now_ms or data[pos] < ZERO or data[pos] > NINE:
        return DROPPED
    row["timer_kind"], row["timer_value"] = TIMER_DELIVER_MS, value
    return KEPT


@kernel
def read_timer(data: Bytes, pos: int, end: int, now_ms: int, row: Any) -> int:
    """Return the outcome of an entry TIMER_*, and set its columns in `row`."""
    if has_name(data, pos, end, DELIVER):
        return read_deliver_time(data, pos + DELIVER.size + 1, end, now_ms, row)
    if has_name(data, pos, end, SECONDS) or has_name(data, pos, end, MS):
        return DROPPED
    if has_name(data, pos, end, OUT):
        row["prop_flags"] |= PROP_TIMER_OUT
        return KEPT
    is_stale = has_name(data, pos, end, ENQUEUE_MS) or has_name(data, pos, end, DEQUEUE_MS)
    if is_stale or has_name(data, pos, end, ROLLS):
        row["prop_flags"] |= PROP_TIMER_STALE
        return KEPT
    return PLAIN


@kernel
def read_entry(data: Bytes, pos: int, end: int, now_ms: int, row: Any) -> int:
    """Return the outcome of the entry data[pos:end], and set its columns in `row`."""
    first, outcome = data[pos], KEPT
    if first == T and has_name(data, pos, end, TAGS):
        row["tags_hash"] = java_hash(data, pos + TAGS.size + 1, end)
    elif first == T and end - pos > TIMER.size and is_named(data, pos, TIMER):
        outcome = read_timer(data, pos, end, now_ms, row)
    elif first == T and has_name(data, pos, end, TRAN_MSG):
        outcome = PLAIN
    elif first == W and has_name(data, pos, end, WAIT):
        start = pos + WAIT.size + 1
        row["prop_flags"] &= ~PROP_WAIT_FALSE
        if equals(data, start, end - start, FALSE):
            row["prop_flags"] |= PROP_WAIT_FALSE
    elif first == R and (
        has_name(data, pos, end, REAL_TOPIC) or has_name(data, pos, end, REAL_QID)
    ):
        row["prop_flags"] |= PROP_REAL_TOPIC
    elif first == UNDERSCORE and has_name(data, pos, end, SHARDING_KEY):
        row["prop_flags"] |= PROP_SHARDED
    elif first == UNDERSCORE and has_name(data, pos, end, PRIORITY):
        row["prop_flags"] |= PROP_PRIORITY
    elif first == D and has_name(data, pos, end, DUE_MS):
        row["prop_flags"] |= PROP_TIMER_STALE
    # the copy must not be delayed again, and gets a checkpoint of its own
    elif (first == D and has_name(data, pos, end, DELAY)) or (
        first == P and has_name(data, pos, end, POP_CK)
    ):
        outcome = DROPPED
    elif first == ONE and has_name(data, pos, end, FIRST):
        outcome = FIRST_POP
    elif first == LETTER_I and end - pos > INNER.size and is_named(data, pos, INNER):
        outcome = PLAIN
    return outcome


@kernel
def copy_properties(
    data: Bytes, pos: int, end: int, context: CopyContext, row: Any, out: Bytes, start: int
) -> int:
    """Copy the properties data[pos:end] to out[start:], and set their columns in `row`.

    Args:
        row: `message_store.layout.PUT`, with the source's `reconsume_times`.
    Returns:
        Position after the copy; -1 if the properties need Python.
    """
    row["prop_pos"] = start
    row["tags_hash"] = 0
    has_first = False
    while pos < end:
        until = entry_end(data, pos, end)
        name_end = find_byte(data, pos, until, NAME_END)
        if name_end == pos or name_end + 1 >= until:
            return -1
        outcome = read_entry(data, pos, until, context.now_ms, row)
        # in the first attempt, the value of 1ST_POP_TIME is replaced
        if outcome == PLAIN or (outcome == FIRST_POP and row["reconsume_times"] == 0):
            return -1
        if outcome != DROPPED:
            if data[pos] == U and has_name(data, pos, until, UNIQ_KEY):
                row["uniq_pos"], row["uniq_len"] = start + name_end + 1 - pos, until - name_end - 1
            copy(out, start, data, pos, until - pos)
            start += until - pos
            out[start] = ENTRY_END
            start += 1
            has_first = has_first or outcome == FIRST_POP
        pos = until + 1
    # consumers find the time of the first pop here (PopReviveService)
    if not has_first:
        copy(out, start, context.first_pop, 0, context.first_pop.size)
        start += context.first_pop.size
    row["prop_len"] = start - row["prop_pos"]
    return start


@kernel
def add_copies(
    data: Bytes,
    log_offsets: npt.NDArray[np.int64],
    frames: npt.NDArray[Any],
    context: CopyContext,
    output: CopyOutput,
) -> int:
    """Add copies of the records in `data`, up to the first record that needs Python.

    Args:
        data: (bytes,) u1: records, one after another.
        log_offsets: (n,) i8: log offset of each record.
        frames: (1,) `message_store.layout.SCANNED`: scratch.
    Returns:
        Number of copies added; less than n if a record needs Python.
    """
    pos, frame = np.int64(0), frames[0]
    for count in range(log_offsets.size):
        size = read_frame(data, pos, data.size, log_offsets[count], frame)
        if size < 0 or not is_body_sound(data, pos, frame):
            return count
        row, position = output.rows[output.end[0]], output.end[1]
        set_message(data, pos, frame, log_offsets[count], row)
        # the positive log offset of the source: a retry is no delivery
        row["prepared_offset"] = log_offsets[count]
        row["topic_index"], row["queue_id"] = context.topic_index, 0
        row["sys_flag"] = (frame["sys_flag"] & context.sys_flags) | context.store_flag
        row["store_ip_hi"], row["store_ip_lo"] = context.store_ip_hi, context.store_ip_lo
        row["store_port"] = context.store_port
        row["body_pos"], row["body_len"] = position, frame["body_len"]
        copy(output.staging, position, data, pos + frame["body_pos"], frame["body_len"])
        start = pos + frame["prop_pos"]
        position = copy_properties(
            data,
            start,
            start + frame["prop_len"],
            context,
            row,
            output.staging,
            position + frame["body_len"],
        )
        if position < 0:
            return count
        # each revival is one more attempt
        row["reconsume_times"] = min(row["reconsume_times"] + 1, RECONSUME_TIMES_MAX)
        output.end[0] += 1
        output.end[1] = position
        pos += size
    return log_offsets.size
