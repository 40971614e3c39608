"""Byte layouts of the wire, big-endian. RemotingCommand, RocketMQSerializable."""

from __future__ import annotations

from typing import Final

from duemq_common.layout import packer

# `length` excludes itself; `header_word` is serialize type << 24 | header length.
PREFIX: Final = packer([("length", ">i4"), ("header_word", ">u4")])
PREFIX_BYTES: Final = 8
WORD_BYTES: Final = 4  # `length` includes the header word
HEADER_BYTES_MASK: Final = 0xFF_FFFF

# The binary header up to its remark. RocketMQSerializable.rocketMQProtocolEncode
HEADER: Final = packer(
    [
        ("code", ">i2"),
        ("language", ">i1"),
        ("version", ">i2"),
        ("opaque", ">i4"),
        ("flag", ">i4"),
        ("remark_len", ">i4"),
    ]
)
assert HEADER.size == 17
LONG_LENGTH: Final = packer([("length", ">i4")])
SHORT_LENGTH: Final = packer([("length", ">i2")])

JSON_TYPE: Final = 0
BINARY_TYPE: Final = 1
OPAQUE_MASK: Final = 0x7FFF_FFFF  # numbers of requests are positive
