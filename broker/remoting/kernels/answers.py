"""Rows of a batch to answer frames: one buffer, the answers of each connection together.

The constant pieces of an answer are cut from one that the codec encoded:

    {"code":0,"extFields":{"queueId":"|","transactionId":"|","msgId":"|", ... "queueOffset":"|
    "},"flag":1,"language":"JAVA","opaque":|,"serializeTypeCurrentRPC":"JSON","version":479}
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from broker.remoting.layout import WIRE_ONEWAY, WIRE_PLAIN
from message_store.kernels.bytes import Bytes, copy, put_digits, put_i4
from message_store.kernels.kernel import kernel
from message_store.layout import PROP_WAIT_FALSE, SYS_STORE_IPV6

WAIT_ANY, WAIT_YES, WAIT_NO = range(3)
ANSWER_BYTES_MAX = 1024  # room that is there before an answer is begun
UNIQ_BYTES_MAX = 255
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8).copy()


class AnswerText(NamedTuple):
    """The constant pieces of an answer, and where the answers go."""

    text: Bytes  # (n,) u1: the pieces, end to end
    cuts: npt.NDArray[np.int64]  # (7,) i8: piece i is text[cuts[i]:cuts[i + 1]]
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
def put_answer(row: Any, wire: Any, staging: Bytes, into: AnswerText, at: int) -> int:
    """Write one frame; return the position behind it."""
    out, start = into.out, at
    at = put_piece(into, 0, at + 8)
    at = put_digits(out, at, np.int64(wire["queue_id"]))
    at = put_piece(into, 1, at)
    copy(out, at, staging, row["uniq_pos"], row["uniq_len"])
    at = put_piece(into, 2, at + row["uniq_len"])
    at = put_message_id(out, at, row)
    at = put_piece(into, 3, at)
    at = put_digits(out, at, np.int64(row["queue_offset"]))
    at = put_piece(into, 4, at)
    at = put_digits(out, at, np.int64(wire["opaque"]))
    at = put_piece(into, 5, at)
    put_i4(out, start, at - start - 4)
    put_i4(out, start + 4, at - start - 8)
    return at


@kernel
def put_answers(
    rows: Any,
    wire: Any,
    count: int,
    staging: Bytes,
    text: Bytes,
    cuts: Any,
    out: Bytes,
    ends: Any,
    wait: int,
) -> Any:
    """Write the answers of rows that were stored; return (bytes or -1, refused rows).

    Args:
        rows, wire: (n,) PUT, WIRE; the first `count`, connections ascending.
        text to ends: the members of `AnswerText`, one by one as a tuple costs some us a call.
        wait: WAIT_YES, WAIT_NO: only rows whose sender does (not) wait for the disk.

    `ends` is filled up to the last connection that has a row. `out` has room for ANSWER_BYTES_MAX
    per row; -1: a row's id is too long for that.
    """
    into = AnswerText(text, cuts, out, ends)
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
        if row["uniq_len"] > UNIQ_BYTES_MAX or at + ANSWER_BYTES_MAX > out.size:
            return np.int64(-1), refused
        at = put_answer(row, line, staging, into, at)
    ends[connection] = at
    return at, refused
