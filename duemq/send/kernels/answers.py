"""Rows of a batch to response frames: one buffer, the responses of a connection adjacent.

The constant pieces of an answer are cut from one that the codec encoded:

    {"code":0,"extFields":{"queueId":"|","transactionId":"|","msgId":"|", ... "recallHandle":"|
    ","queueOffset":"|"},"flag":1,"language":"JAVA","opaque":|,"serializeTypeCurrentRPC":"JSON",...

The handle stands in the answers to timers only; the last piece is the third without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from duemq.send.layout import WIRE_ONEWAY, WIRE_PLAIN
from message_store.kernels.bytes import Bytes, copy, put_digits, put_i4
from message_store.kernels.kernel import kernel
from message_store.layout import PROP_WAIT_FALSE, SYS_STORE_IPV6

WAIT_ANY, WAIT_YES, WAIT_NO = range(3)
VARIABLE_BYTES_MAX = 2048  # of one answer, beside its constant pieces
UNIQ_BYTES_MAX = 255
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8).copy()
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
BASE64 = np.frombuffer(_BASE64, np.uint8).copy()
HANDLE_VERSION = np.frombuffer(b"v1 ", np.uint8).copy()
SCRATCH_BYTES = 1024
HANDLE_REST_BYTES = 32  # of a recall handle: version, time and separators
BLANK, PADDING = 32, 61


class AnswerText(NamedTuple):
    """The constant pieces of an answer, and where the answers go."""

    text: Bytes  # (n,) u1: the pieces, end to end
    cuts: npt.NDArray[np.int64]  # (9,) i8: piece i is text[cuts[i]:cuts[i + 1]]
    broker: Bytes  # (n,) u1: the broker's name, for recall handles
    scratch: Bytes  # (SCRATCH_BYTES,) u1
    out: Bytes  # (n,) u1
    ends: npt.NDArray[np.int64]  # (connections,) i8: where the answers of each end in `out`


@kernel
def put_piece(into: AnswerText, piece: int, at: int) -> int:
    start, size = into.cuts[piece], into.cuts[piece + 1] - into.cuts[piece]
    copy(into.out, at, into.text, start, size)
    return at + size


@kernel
def put_hex(out: Bytes, at: int, value: Any, digits: int) -> int:
    """Write the low `digits` hex digits of a u8."""
    for i in range(digits):
        out[at + i] = HEX[(value >> np.uint64(4 * (digits - 1 - i))) & np.uint64(15)]
    return at + digits


@kernel
def put_message_id(out: Bytes, at: int, row: Any) -> int:
    """Write the offset message id: address, port, log offset."""
    if row["sys_flag"] & SYS_STORE_IPV6:
        at = put_hex(out, at, row["store_ip_hi"], 16)
        at = put_hex(out, at, row["store_ip_lo"], 16)
    else:
        at = put_hex(out, at, row["store_ip_lo"], 8)
    at = put_hex(out, at, np.uint64(row["store_port"]), 8)
    return put_hex(out, at, np.uint64(row["phys_offset"]), 16)


@kernel
def put_base64(out: Bytes, at: int, data: Bytes, size: int) -> int:
    """Write data[:size], URL-safe and padded; return the position behind it."""
    for pos in range(0, size, 3):
        word = np.int64(data[pos]) << 16
        word |= np.int64(data[pos + 1]) << 8 if pos + 1 < size else 0
        word |= np.int64(data[pos + 2]) if pos + 2 < size else 0
        for i in range(4):
            out[at + i] = BASE64[word >> (18 - 6 * i) & 63]
        if pos + 1 >= size:
            out[at + 2] = PADDING
        if pos + 2 >= size:
            out[at + 3] = PADDING
        at += 4
    return at


@kernel
def put_recall_handle(
    row: Any, staging: Bytes, topics: Any, names: Bytes, into: AnswerText, at: int
) -> int:
    """Write the recall handle of a timer; `duemq.messages.recall_handle` is the readable twin."""
    raw, topic = into.scratch, topics[row["real_topic_index"]]
    copy(raw, 0, HANDLE_VERSION, 0, HANDLE_VERSION.size)
    size = np.int64(HANDLE_VERSION.size)
    copy(raw, size, names, topic["name_pos"], topic["name_len"])
    size += topic["name_len"]
    raw[size] = BLANK
    copy(raw, size + 1, into.broker, 0, into.broker.size)
    size += 1 + into.broker.size
    raw[size] = BLANK
    size = put_digits(raw, size + 1, np.int64(row["out_ms"]) + 1)
    raw[size] = BLANK
    copy(raw, size + 1, staging, row["uniq_pos"], row["uniq_len"])
    return put_base64(into.out, at, raw, size + 1 + row["uniq_len"])


@kernel
def handle_fits(row: Any, topics: Any, into: AnswerText) -> bool:
    """Return whether the scratch space holds a row's recall handle, if it has one."""
    if row["out_ms"] < 0 or row["real_topic_index"] < 0:
        return True
    size = np.int64(topics[row["real_topic_index"]]["name_len"]) + into.broker.size
    return size + np.int64(row["uniq_len"]) + HANDLE_REST_BYTES <= SCRATCH_BYTES


@kernel
def put_answer(
    row: Any, wire: Any, staging: Bytes, topics: Any, names: Bytes, into: AnswerText, at: int
) -> int:
    """Write one frame; return the position behind it."""
    out, start = into.out, at
    at = put_piece(into, 0, at + 8)
    at = put_digits(out, at, np.int64(wire["queue_id"]))
    at = put_piece(into, 1, at)
    copy(out, at, staging, row["uniq_pos"], row["uniq_len"])
    at = put_piece(into, 2, at + row["uniq_len"])
    at = put_message_id(out, at, row)
    if row["out_ms"] >= 0 and row["real_topic_index"] >= 0:
        at = put_piece(into, 3, at)
        at = put_recall_handle(row, staging, topics, names, into, at)
        at = put_piece(into, 4, at)
    else:
        at = put_piece(into, 7, at)
    at = put_digits(out, at, np.int64(row["queue_offset"]))
    at = put_piece(into, 5, at)
    at = put_digits(out, at, np.int64(wire["opaque"]))
    at = put_piece(into, 6, at)
    put_i4(out, start, at - start - 4)
    put_i4(out, start + 4, at - start - 8)
    return at


@kernel
def put_answers(
    rows: Any,
    wire: Any,
    count: int,
    staging: Bytes,
    topics: Any,
    names: Bytes,
    text: Bytes,
    cuts: Any,
    broker: Bytes,
    scratch: Bytes,
    out: Bytes,
    ends: Any,
    wait: int,
) -> Any:
    """Write the answers of rows that were stored; return (bytes or -1, refused rows).

    Args:
        rows, wire: (n,) PUT, WIRE; the first `count`, connections ascending.
        topics, names: of TopicArrays.
        text to ends: the members of `AnswerText`, one by one as a tuple costs some us a call.
        wait: WAIT_YES, WAIT_NO: only rows whose sender does (not) wait for the disk.

    `ends` is filled up to the last connection that has a row. `out` has room for the constant
    pieces and VARIABLE_BYTES_MAX per row; -1: it has not, or a row's id or topic is too long.
    """
    into = AnswerText(text, cuts, broker, scratch, out, ends)
    answer_bytes_max = text.size + VARIABLE_BYTES_MAX
    at, connection, refused = np.int64(0), np.int64(0), 0
    for i in range(count):
        row, line = rows[i], wire[i]
        while connection < line["connection"]:
            ends[connection] = at
            connection += 1
        if row["status"] != 0:
            refused += 1
            continue
        waits = row["prop_flags"] & PROP_WAIT_FALSE == 0
        skip = (wait == WAIT_YES and not waits) or (wait == WAIT_NO and waits)
        if skip or line["flags"] & (WIRE_ONEWAY | WIRE_PLAIN):
            continue
        fits = at + answer_bytes_max <= out.size and handle_fits(row, topics, into)
        if not fits or row["uniq_len"] > UNIQ_BYTES_MAX:
            return np.int64(-1), refused
        at = put_answer(row, line, staging, topics, names, into, at)
    ends[connection] = at
    return at, refused
