"""Byte layouts of the wire, big-endian. RemotingCommand, RocketMQSerializable."""

from __future__ import annotations

from typing import Final

import numpy as np

from message_store.layout import packer

# `length` excludes itself; `header_word` is serialize type << 24 | header length.
FRAME_PREFIX = np.dtype([("length", ">i4"), ("header_word", ">u4")])
assert FRAME_PREFIX.itemsize == 8
PREFIX: Final = packer(FRAME_PREFIX)
PREFIX_BYTES: Final = 8
WORD_BYTES: Final = 4  # `length` includes the header word
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
