"""Byte layout of a record of the commit log, as clients get it, too. No NumPy.

`message_store.layout` has the same names for kernels.
"""

from __future__ import annotations

from typing import Final

from duemq_common.layout import Fields, packer

MAGIC_V1: Final = -626843481  # 0xDAA320A7, CommitLog.MESSAGE_MAGIC_CODE
MAGIC_V2: Final = -626843477  # 0xDAA320AB, topics longer than 127 bytes, 5.x only

# One record with IPv4 hosts up to its body; MessageExtEncoder, MessageDecoder.
RECORD_HEAD_FIELDS: Final[Fields] = (
    ("total_size", ">i4"),
    ("magic", ">i4"),
    ("body_crc", ">i4"),
    ("queue_id", ">i4"),
    ("flag", ">i4"),
    ("queue_offset", ">i8"),
    ("phys_offset", ">i8"),
    ("sys_flag", ">i4"),
    ("born_ms", ">i8"),
    ("born_ip", ">u4"),
    ("born_port", ">i4"),
    ("store_ms", ">i8"),
    ("store_ip", ">u4"),
    ("store_port", ">i4"),
    ("reconsume_times", ">i4"),
    ("prepared_offset", ">i8"),
    ("body_len", ">i4"),
)
RECORD_HEAD_BYTES: Final = 88
CRC_MASK: Final = 0x7FFF_FFFF  # brokers clear the highest bit of the CRC of a body
PROPERTIES_LENGTH: Final = packer([("properties_len", ">i2")])  # after the topic
RECORD_FIXED_BYTES: Final = 91  # head + topic length (1) + properties length (2)
TOPIC_BYTES_V1_MAX: Final = 127  # longer topics have a length of two bytes and MAGIC_V2
IPV6_EXTRA_BYTES: Final = 12  # each host grows from 4 to 16 address bytes

# One entry of a client's batch body up to its own body; MessageDecoder.encodeMessages.
BATCH_ENTRY_HEAD: Final = packer(
    [
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("flag", ">i4"),
        ("body_len", ">i4"),
    ]
)
assert BATCH_ENTRY_HEAD.size == 20

# SYSFLAG bits, MessageSysFlag.
SYS_COMPRESSED: Final = 0x001
SYS_TRANSACTION_MASK: Final = 0x00C
SYS_PREPARED: Final = 0x004
SYS_COMMIT: Final = 0x008
SYS_ROLLBACK: Final = 0x00C
SYS_BORN_IPV6: Final = 0x010
SYS_STORE_IPV6: Final = 0x020

# Property text: name NAME_END value ENTRY_END, repeated; KEY_END separates the words of KEYS.
NAME_END, ENTRY_END, KEY_END = 1, 2, 32

# Part of an offset message id after the address (MessageDecoder.createMessageId).
OFFSET_ID_TAIL: Final = packer([("port", ">i4"), ("phys_offset", ">i8")])
