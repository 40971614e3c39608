"""Layouts shared by the `send` kernels and Python, in native byte order."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

ROWS_MAX: Final = 1_024  # rows of one batch; a single client batch may exceed it

# Fields of a send that are needed for its response, one row per PUT row.
WIRE = np.dtype(
    [
        ("opaque", "i4"),
        ("connection", "i4"),  # number of the connection within the turn
        ("queue_id", "i4"),  # queue of the request's topic; hooks may redirect the message
        ("flags", "i4"),  # WIRE_*
    ],
    align=True,
)
WIRE_ONEWAY: Final = 1
WIRE_DECODED: Final = 2  # Python writes the response

# Address of one end of a connection, as PUT columns.
HOST = np.dtype(
    [("ip_hi", "u8"), ("ip_lo", "u8"), ("port", "i4"), ("ipv6", "i4")],
    align=True,
)

# Indexes into TURN.state, which `take_sends` reads and writes.
STATE_FRAME_END, STATE_ROWS, STATE_STAGED, STATE_CONNECTION = range(4)
STATE_FRAME_MAX, STATE_BODY_MAX, STATE_PROPERTIES_MAX = range(4, 7)
STATE_KINDS: Final = 7  # `PutBatch.kinds` of the rows
STATE_SIZE: Final = 8

CONNECTIONS_MAX: Final = 32_768  # connections per turn

# Input and output of `put_responses`.
PIECES: Final = 9
RESPONSES = np.dtype(
    [
        ("count", "i8"),  # number of rows in the batch
        ("wait", "i8"),  # WAIT_*: which rows get a response
        ("cuts", "i8", (PIECES + 1,)),  # piece i is text[cuts[i]:cuts[i + 1]]
        ("ends", "i8", (CONNECTIONS_MAX,)),  # end of each connection's responses in `out`
    ]
)

RESPONSE_COUNT, RESPONSE_WAIT = range(2)  # the same record as numbers
RESPONSE_ENDS: Final = 2 + PIECES + 1

# Reason why `take_sends` stopped.
STOP_INCOMPLETE, STOP_DECODE, STOP_FULL, STOP_MALFORMED = range(4)

# Span of a value in a JSON header: start, end, kind.
SPAN_START, SPAN_END, SPAN_KIND = range(3)
KIND_TEXT, KIND_RICH_TEXT, KIND_NUMBER, KIND_TRUE, KIND_FALSE, KIND_NULL = range(1, 7)

# Header fields of a send. Code 10 uses these names, code 310 the letters at the same index.
SEND_FIELDS: Final = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "bname",
)
SEND_LETTERS: Final = "abcdefghijklmn"
SEND_REQUIRED: Final = 8  # number of leading fields that are mandatory
SLOT_LONG: Final = 16  # first slot of the long names
SLOT_CODE, SLOT_FLAG, SLOT_OPAQUE = 32, 33, 34
SLOT_ACCESS_KEY, SLOT_SIGNATURE = 35, 36
SLOT_OTHER: Final = 37  # any other header field, whose span is not stored
SLOT_COUNT: Final = 38
ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNATURE_FIELD: Final = "Signature"

# Account and topics whose sends the kernel accepts on one connection.
ACCESS_KEY_BYTES_MAX: Final = 128
GRANT_TOPICS: Final = 64  # a power of 2; topic i is stored at index i mod 64
GRANT = np.dtype(
    [
        ("check", "i4"),  # 0: access control is off, other fields are ignored
        ("key_len", "i4"),  # -1: no account
        ("key", "u1", (ACCESS_KEY_BYTES_MAX,)),
        ("inner", "u4", (5,)),  # SHA-1 after the block of the secret xor 0x36
        ("outer", "u4", (5,)),  # SHA-1 after the block of the secret xor 0x5c
        ("topics", "i4", (GRANT_TOPICS,)),  # indexes of granted topics; -1: none
    ],
    align=True,
)

# Scratch space of the signature check.
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

# One connection.
SENDER = np.dtype([("born", HOST), ("grant", GRANT)], align=True)

# One turn: values shared by all frames, positions, scratch space.
TURN = np.dtype(
    [
        ("store_host", HOST),
        ("state", "i8", (STATE_SIZE,)),  # STATE_*
        ("spans", "i8", (SLOT_COUNT + 1, 3)),  # spans of header fields; the last row is scratch
        ("signing", SIGNING),
    ],
    align=True,
)


def host_column(address: bytes, port: int) -> npt.NDArray[np.void]:
    """Return (1,) HOST of address bytes (4 or 16) and a port."""
    number = int.from_bytes(address, "big")
    column = np.zeros(1, HOST)
    column[0] = (number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF, port, len(address) == 16)
    return column
