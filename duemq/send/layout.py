"""Records that the kernels of `send` share with Python, in native byte order."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

# What a send needs for its answer, one row per PUT row; native byte order.
WIRE = np.dtype(
    [
        ("opaque", "i4"),
        ("connection", "i4"),  # number of the connection within the turn
        ("queue_id", "i4"),  # of the request's topic: hooks may move the message elsewhere
        ("flags", "i4"),  # WIRE_*
    ],
    align=True,
)
WIRE_ONEWAY: Final = 1
WIRE_PLAIN: Final = 2  # answered by Python

# One end of a connection as PUT columns; native byte order.
HOST = np.dtype(
    [("ip_hi", "u8"), ("ip_lo", "u8"), ("port", "i4"), ("ipv6", "i4")],
    align=True,
)

# Indexes of the numbers that `take_sends` reads and writes.
STATE_FRAME_END, STATE_ROWS, STATE_STAGED, STATE_CONNECTION = range(4)
STATE_FRAME_MAX, STATE_BODY_MAX, STATE_PROPERTIES_MAX = range(4, 7)
STATE_SIZE: Final = 7

CONNECTIONS_MAX: Final = 32_768  # of one turn

# What `put_answers` works with: one record.
PIECES: Final = 9
ANSWERS = np.dtype(
    [
        ("count", "i8"),  # rows of the batch
        ("wait", "i8"),  # WAIT_*: the rows to answer
        ("cuts", "i8", (PIECES + 1,)),  # piece i is text[cuts[i]:cuts[i + 1]]
        ("ends", "i8", (CONNECTIONS_MAX,)),  # where the answers of each connection end in `out`
    ]
)

# Why `take_sends` stopped.
STOP_INCOMPLETE, STOP_PLAIN, STOP_FULL, STOP_BROKEN = range(4)

# Spans of a JSON header: what kind of value, from where to where.
SPAN_START, SPAN_END, SPAN_KIND = range(3)
KIND_TEXT, KIND_RICH_TEXT, KIND_NUMBER, KIND_TRUE, KIND_FALSE, KIND_NULL = range(1, 7)

# Header fields of a send: code 310 names them by letters in this order, code 10 by these names.
SEND_FIELDS: Final = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
    *("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes"),
    *("batch", "bname"),
)
SEND_LETTERS: Final = "abcdefghijklmn"
SEND_REQUIRED: Final = 8  # the first so many must be there
SLOT_LONG: Final = 16  # slots of long names follow those of letters
SLOT_CODE, SLOT_FLAG, SLOT_OPAQUE = 32, 33, 34
SLOT_ACCESS_KEY, SLOT_SIGNATURE = 35, 36
SLOT_OTHER: Final = 37  # a header field that is none of these; it has no span
SLOT_COUNT: Final = 38
ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNATURE_FIELD: Final = "Signature"

# Account whose sends the kernel takes on one connection; native byte order.
ACCESS_KEY_BYTES_MAX: Final = 128
GRANT_TOPICS: Final = 64  # a power of 2: topic i may be at place i mod 64
GRANT = np.dtype(
    [
        ("check", "i4"),  # 0: accounts are off, the rest is not read
        ("key_len", "i4"),  # -1: no account
        ("key", "u1", (ACCESS_KEY_BYTES_MAX,)),
        ("inner", "u4", (5,)),  # SHA-1 after the block of the secret xor 0x36
        ("outer", "u4", (5,)),  # the same, xor 0x5c
        ("topics", "i4", (GRANT_TOPICS,)),  # indexes to which it may publish; -1: none
    ],
    align=True,
)

# Scratch of the signature check.
HEADER_BYTES_MAX: Final = 1 << 17  # a longer header is checked in Python
SIGNING = np.dtype(
    [
        ("values", "u1", (HEADER_BYTES_MAX + 64,)),
        ("last", "u1", (128,)),
        ("digest", "u1", (20,)),
        ("state", "u4", (5,)),
        ("words", "u4", (80,)),
    ],
    align=True,
)

# One connection, for the kernels.
SENDER = np.dtype([("born", HOST), ("grant", GRANT)], align=True)

# One turn: what is the same for every frame, positions, and scratch.
TURN = np.dtype(
    [
        ("home", HOST),  # the store host
        ("state", "i8", (STATE_SIZE,)),  # STATE_*
        ("spans", "i8", (SLOT_COUNT + 1, 3)),  # of the header's fields; the last is scratch
        ("signing", SIGNING),
    ],
    align=True,
)


def host_column(address: bytes, port: int) -> npt.NDArray[Any]:
    """Return (1,) HOST of address bytes (4 or 16) and a port."""
    number = int.from_bytes(address, "big")
    column = np.zeros(1, HOST)
    column[0] = (number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF, port, len(address) == 16)
    return column
