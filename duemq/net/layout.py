"""Byte layouts of the wire, big-endian. RemotingCommand, RocketMQSerializable."""

from __future__ import annotations

from typing import Final

import numpy as np

from message_store.layout import packer

# `length` counts what follows it; `header_word` is serialize type << 24 | header length.
FRAME_PREFIX = np.dtype([("length", ">i4"), ("header_word", ">u4")])
assert FRAME_PREFIX.itemsize == 8
PREFIX: Final = packer(FRAME_PREFIX)
PREFIX_BYTES: Final = 8
WORD_BYTES: Final = 4  # the header word is counted by `length`
HEADER_BYTES_MASK: Final = 0xFF_FFFF

# The binary header up to its remark. RocketMQSerializable.rocketMQProtocolEncode
BINARY_HEADER = np.dtype(
    [
        ("code", ">i2"),
        ("language", ">i1"),
        ("version", ">i2"),
        ("opaque", ">i4"),
        ("flag", ">i4"),
        ("remark_len", ">i4"),
    ]
)
assert BINARY_HEADER.itemsize == 17
HEADER: Final = packer(BINARY_HEADER)
LONG_LENGTH: Final = packer(np.dtype([("length", ">i4")]))
SHORT_LENGTH: Final = packer(np.dtype([("length", ">i2")]))

JSON_TYPE: Final = 0
BINARY_TYPE: Final = 1

# What a send needs for its answer, one row beside each PUT row; native byte order.
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
SLOT_COUNT: Final = 35
