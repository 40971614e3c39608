"""Kernel that encodes the responses to rows of a batch, contiguous per connection.

A response consists of constant pieces, cut from a response that the codec encoded, and of values:

    {"code":0,"extFields":{"queueId":"|","transactionId":"|","msgId":"|", ... "recallHandle":"|
    ","queueOffset":"|"},"flag":1,"language":"JAVA","opaque":|,"serializeTypeCurrentRPC":"JSON",...

Only responses to timers have a recall handle. In others, the piece PIECE_OFFSET replaces the pieces
before and after the handle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from duemq.net.layout import PREFIX_BYTES, WORD_BYTES
from duemq.send.layout import WIRE_DECODED, WIRE_ONEWAY
from message_store.kernels.bytes import Bytes, copy, put_digits, put_i4
from message_store.kernels.kernel import kernel
from message_store.layout import PROP_WAIT_FALSE, SYS_STORE_IPV6

WAIT_ANY, WAIT_YES, WAIT_NO = range(3)
VARIABLE_BYTES_MAX = 2048  # variable bytes of one response
UNIQ_BYTES_MAX = 255
Offsets = npt.NDArray[np.int64]
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8).copy()
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
BASE64 = np.frombuffer(_BASE64, np.uint8).copy()
HANDLE_VERSION = np.frombuffer(b"v1 ", np.uint8).copy()
SCRATCH_BYTES = 1024
HANDLE_REST_BYTES = 32  # version, time and separators of a recall handle
BLANK, PADDING = 32, 61

# Constant pieces, named by the value that follows; the last one is the broker name.
PIECE_HEAD, PIECE_TRANSACTION_ID, PIECE_MESSAGE_ID, PIECE_HANDLE = range(4)
PIECE_OFFSET_AFTER_HANDLE, PIECE_OPAQUE, PIECE_END, PIECE_OFFSET, PIECE_BROKER = range(4, 9)


class ResponseText(NamedTuple):
    """Constant pieces of a response, and the output buffer."""

    text: Bytes  # (n,) u1: the concatenated pieces; the last is the broker name
    out: Bytes  # (n,) u1: SCRATCH_BYTES for a recall handle, then the responses
    turn: npt.NDArray[Any]  # (1,) layout.RESPONSES


@kernel
def put_piece(text: Bytes, cuts: Offsets, index: int, out: Bytes, position: int) -> int:
    """Write a constant piece; return the position after it."""
    start, size = cuts[index], cuts[index + 1] - cuts[index]
    copy(out, position, text, start, size)
    return position + size


@kernel
def put_hex(out: Bytes, position: int, value: Any, digits: int) -> int:
    """Write the low `digits` hex digits of a u8."""
    for i in range(digits):
        out[position + i] = HEX[(value >> np.uint64(4 * (digits - 1 - i))) & np.uint64(15)]
    return position + digits


@kernel
def put_message_id(out: Bytes, position: int, row: Any) -> int:
    """Write the offset message id: address, port, log offset."""
    if row["sys_flag"] & SYS_STORE_IPV6:
        position = put_hex(out, position, row["store_ip_hi"], 16)
        position = put_hex(out, position, row["store_ip_lo"], 16)
    else:
        position = put_hex(out, position, row["store_ip_lo"], 8)
    position = put_hex(out, position, np.uint64(row["store_port"]), 8)
    return put_hex(out, position, np.uint64(row["phys_offset"]), 16)


@kernel
def put_base64(out: Bytes, start: int, data: Bytes, size: int) -> int:
    """Write data[:size] as URL-safe padded Base64; return the position after it."""
    for pos in range(0, size, 3):
        word = np.int64(data[pos]) << 16
        # missing bytes of the last group count as zero
        word |= np.int64(data[pos + 1]) << 8 if pos + 1 < size else 0
        word |= np.int64(data[pos + 2]) if pos + 2 < size else 0
        for i in range(4):
            out[start + i] = BASE64[word >> (18 - 6 * i) & 63]
        # the characters that only missing bytes determine are padding
        if pos + 1 >= size:
            out[start + 2] = PADDING
        if pos + 2 >= size:
            out[start + 3] = PADDING
        start += 4
    return start


@kernel
def put_recall_handle(
    row: Any,
    staging: Bytes,
    topics: Any,
    names: Bytes,
    text: Bytes,
    cuts: Offsets,
    out: Bytes,
    position: int,
) -> int:
    """Write the recall handle of a timer; `duemq_common.recall_handle` is the readable twin."""
    topic = topics[row["real_topic_index"]]
    # Assemble the handle in the first SCRATCH_BYTES: version, topic, broker, time, id.
    copy(out, 0, HANDLE_VERSION, 0, HANDLE_VERSION.size)
    size = np.int64(HANDLE_VERSION.size)
    copy(out, size, names, topic["name_pos"], topic["name_len"])
    size += topic["name_len"]
    out[size] = BLANK
    size = put_piece(text, cuts, PIECE_BROKER, out, size + 1)
    out[size] = BLANK
    # TIMER_OUT_MS + 1, as in Apache's handle (RecallMessageHandle)
    size = put_digits(out, size + 1, np.int64(row["out_ms"]) + 1)
    out[size] = BLANK
    copy(out, size + 1, staging, row["uniq_pos"], row["uniq_len"])
    return put_base64(out, position, out, size + 1 + row["uniq_len"])


@kernel
def handle_fits(row: Any, topics: Any, cuts: Offsets) -> bool:
    """Return whether a row's recall handle, if any, fits into the scratch space."""
    if row["out_ms"] < 0 or row["real_topic_index"] < 0:
        return True
    size = np.int64(topics[row["real_topic_index"]]["name_len"])
    size += cuts[PIECE_BROKER + 1] - cuts[PIECE_BROKER]
    return size + np.int64(row["uniq_len"]) + HANDLE_REST_BYTES <= SCRATCH_BYTES


@kernel
def put_head(
    row: Any, wire: Any, staging: Bytes, text: Bytes, cuts: Offsets, out: Bytes, position: int
) -> int:
    """Write a response up to its message id; skip the length prefix, which `put_tail` writes."""
    position = put_piece(text, cuts, PIECE_HEAD, out, position + PREFIX_BYTES)
    position = put_digits(out, position, np.int64(wire["queue_id"]))
    position = put_piece(text, cuts, PIECE_TRANSACTION_ID, out, position)
    copy(out, position, staging, row["uniq_pos"], row["uniq_len"])
    position = put_piece(text, cuts, PIECE_MESSAGE_ID, out, position + row["uniq_len"])
    return put_message_id(out, position, row)


@kernel
def put_tail(
    row: Any, wire: Any, text: Bytes, cuts: Offsets, out: Bytes, start: int, position: int
) -> int:
    """Write the queue offset and the rest of a response, then its length prefix at `start`."""
    position = put_digits(out, position, np.int64(row["queue_offset"]))
    position = put_piece(text, cuts, PIECE_OPAQUE, out, position)
    position = put_digits(out, position, np.int64(wire["opaque"]))
    position = put_piece(text, cuts, PIECE_END, out, position)
    # the prefix: length of the frame, length of the header (encoding 0: JSON)
    put_i4(out, start, position - start - WORD_BYTES)
    put_i4(out, start + WORD_BYTES, position - start - PREFIX_BYTES)
    return position


@kernel
def put_responses(
    rows: Any,
    wire: Any,
    staging: Bytes,
    topics: Any,
    names: Bytes,
    text: Bytes,
    out: Bytes,
    turn: Any,
) -> Any:
    """Write the responses to stored rows; return (end in `out` or -1, number of refused rows).

    Args:
        rows, wire: (n,) PUT, WIRE; the first `count` of `turn` are used, connections ascending.
        topics, names: Members of TopicArrays.
        text, out, turn: Members of `ResponseText`, passed separately: a tuple costs time per call.

    The kernel sets `ends` of `turn` up to the last connection that has a row. It returns -1 if
    `out` may be too small for another response, or an id or topic name is too long.
    """
    numbers = turn[0]
    cuts, ends, wait = numbers["cuts"], numbers["ends"], numbers["wait"]
    response_bytes_max = text.size + VARIABLE_BYTES_MAX
    position, connection, refused = np.int64(SCRATCH_BYTES), np.int64(0), 0
    for i in range(numbers["count"]):
        row, line = rows[i], wire[i]
        # One connection's responses end where those of the next begin.
        while connection < line["connection"]:
            ends[connection] = position
            connection += 1
        if row["status"] != 0:
            refused += 1
            continue
        # a client may ask not to wait for the disk and the replicas (WAIT=false)
        waits = row["prop_flags"] & PROP_WAIT_FALSE == 0
        skip = (wait == WAIT_YES and not waits) or (wait == WAIT_NO and waits)
        if skip or line["flags"] & (WIRE_ONEWAY | WIRE_DECODED):
            continue
        # the largest possible response, so that nothing is checked inside
        fits = position + response_bytes_max <= out.size and handle_fits(row, topics, cuts)
        if not fits or row["uniq_len"] > UNIQ_BYTES_MAX:
            return np.int64(-1), refused
        start = position
        position = put_head(row, line, staging, text, cuts, out, position)
        if row["out_ms"] >= 0 and row["real_topic_index"] >= 0:
            position = put_piece(text, cuts, PIECE_HANDLE, out, position)
            position = put_recall_handle(row, staging, topics, names, text, cuts, out, position)
            position = put_piece(text, cuts, PIECE_OFFSET_AFTER_HANDLE, out, position)
        else:
            position = put_piece(text, cuts, PIECE_OFFSET, out, position)
        position = put_tail(row, line, text, cuts, out, start, position)
    # the connections after the last row have no responses
    ends[connection] = position
    return position, refused
