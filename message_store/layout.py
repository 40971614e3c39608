"""Byte layouts of the store, each declared once.

Disk layouts are big-endian (`">"` appears only in layout modules); the column layouts of a batch
are native, because kernels and Arrow refuse big-endian arrays. `native_columns` converts.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from duemq_common.layout import packer as packer_of
from message_store.log.layout import CRC_MASK as CRC_MASK
from message_store.log.layout import ENTRY_END as ENTRY_END
from message_store.log.layout import IPV6_EXTRA_BYTES as IPV6_EXTRA_BYTES
from message_store.log.layout import KEY_END as KEY_END
from message_store.log.layout import MAGIC_V1 as MAGIC_V1
from message_store.log.layout import MAGIC_V2 as MAGIC_V2
from message_store.log.layout import NAME_END as NAME_END
from message_store.log.layout import RECORD_FIXED_BYTES as RECORD_FIXED_BYTES
from message_store.log.layout import RECORD_HEAD_BYTES as RECORD_HEAD_BYTES
from message_store.log.layout import RECORD_HEAD_FIELDS
from message_store.log.layout import SYS_BORN_IPV6 as SYS_BORN_IPV6
from message_store.log.layout import SYS_COMMIT as SYS_COMMIT
from message_store.log.layout import SYS_COMPRESSED as SYS_COMPRESSED
from message_store.log.layout import SYS_PREPARED as SYS_PREPARED
from message_store.log.layout import SYS_ROLLBACK as SYS_ROLLBACK
from message_store.log.layout import SYS_STORE_IPV6 as SYS_STORE_IPV6
from message_store.log.layout import SYS_TRANSACTION_MASK as SYS_TRANSACTION_MASK
from message_store.log.layout import TOPIC_BYTES_V1_MAX as TOPIC_BYTES_V1_MAX

Rows = npt.NDArray[np.void]
"""Records of a structured dtype: columns by field name."""
Row = np.void
"""Single record; a view if its array is writable."""


def positions(layout: np.dtype[Any]) -> Any:
    """Return the byte position of each field, as a named tuple that kernels take as a constant."""
    assert layout.fields is not None
    names = layout.names or ()
    named: Any = namedtuple  # mypy accepts literal names only
    return named("Positions", names)(*(int(layout.fields[name][1]) for name in names))


MAGIC_BLANK: Final = -875286124  # 0xCBD43194, CommitLog.BLANK_MAGIC_CODE

# One record with IPv4 hosts up to its body; MessageExtEncoder, MessageDecoder.
RECORD_HEAD = np.dtype(list(RECORD_HEAD_FIELDS))
assert RECORD_HEAD.itemsize == RECORD_HEAD_BYTES
RECORD_AT: Final = positions(RECORD_HEAD)

BLANK_RECORD = np.dtype([("size", ">i4"), ("magic", ">i4")])
assert BLANK_RECORD.itemsize == 8
BLANK_BYTES: Final = 8  # kept free at the end of every log file

# ConsumeQueue.CQ_STORE_UNIT_SIZE
CQ_UNIT = np.dtype([("phys_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert CQ_UNIT.itemsize == 20
UNIT_AT: Final = positions(CQ_UNIT)
UNIT_BYTES: Final = 20
PRE_BLANK_SIZE: Final = 0x7FFFFFFF  # size in the units before a queue's first message

# IndexHeader, IndexFile
INDEX_HEADER = np.dtype(
    [
        ("begin_ms", ">i8"),
        ("end_ms", ">i8"),
        ("begin_phys", ">i8"),
        ("end_phys", ">i8"),
        ("slot_count", ">i4"),
        ("index_count", ">i4"),
    ]
)
assert INDEX_HEADER.itemsize == 40
INDEX_HEADER_BYTES: Final = 40
INDEX_SLOT = np.dtype(">i4")  # number of the newest item, 0: none
INDEX_SLOT_BYTES: Final = 4
INDEX_ITEM = np.dtype(
    [("key_hash", ">i4"), ("phys_offset", ">i8"), ("time_diff_s", ">i4"), ("prev_index", ">i4")]
)
assert INDEX_ITEM.itemsize == 20
ITEM_AT: Final = positions(INDEX_ITEM)
ITEM_BYTES: Final = 20

# StoreCheckpoint; the last two fields are 5.x only.
CHECKPOINT = np.dtype(
    [
        ("physic_ms", ">i8"),
        ("logics_ms", ">i8"),
        ("index_ms", ">i8"),
        ("master_flushed_offset", ">i8"),
        ("confirm_offset", ">i8"),
        ("logics_offset", ">i8"),  # from 5.4 on; 0: the times count
    ]
)
assert CHECKPOINT.itemsize == 48
CHECKPOINT_BYTES: Final = 4096

# Checksums of the log's blocks, ours: one for each block of a log file.
BLOCK_SUM = np.dtype(">u4")
SUM_UNKNOWN: Final = 0
# Checksum of the first `count` units of a block of a queue file, ours.
UNIT_SUM = np.dtype([("count", ">u4"), ("crc", ">u4")])
assert UNIT_SUM.itemsize == 8
# Checksum of the bytes from the start of the open block to `end`, a log offset.
TAIL_SUM = np.dtype([("end", ">i8"), ("crc", ">u4"), ("own_crc", ">u4")])
assert TAIL_SUM.itemsize == 16

# A message to be appended, in native byte order. `*_pos` are positions in the staging buffer of the
# batch. The encoder sets the last block.
PUT = np.dtype(
    [
        ("body_pos", "i8"),
        ("body_len", "i4"),
        ("prop_len", "i4"),
        ("prop_pos", "i8"),
        ("topic_index", "i4"),  # topic of the record
        ("queue_id", "i4"),
        ("real_topic_index", "i4"),  # topic for REAL_TOPIC and REAL_QID, -1: none
        ("real_queue_id", "i4"),
        ("flag", "i4"),
        ("sys_flag", "i4"),
        ("born_ms", "i8"),
        ("born_ip_hi", "u8"),  # IPv6: address as two words; IPv4: the low 32 bits of `lo`
        ("born_ip_lo", "u8"),
        ("born_port", "i4"),
        ("store_port", "i4"),
        ("store_ip_hi", "u8"),
        ("store_ip_lo", "u8"),
        ("prepared_offset", "i8"),
        ("reconsume_times", "i4"),
        ("delay_level", "i4"),  # DELAY as a number; 0: absent; or DELAY_ILLEGAL
        ("timer_value", "i8"),  # the number of timer_kind
        ("timer_kind", "i4"),  # TIMER_*: the property with timer_value
        ("prop_flags", "i4"),  # PROP_*: other properties of the text
        ("tags_hash", "i8"),  # Java hash of TAGS, sign-extended; 0: absent
        ("uniq_pos", "i8"),  # value of UNIQ_KEY in staging
        ("uniq_len", "i4"),
        ("status", "i4"),  # 0, or the response code of a refusal by a hook or the store
        # source of the tags code: -1: tags_hash; TAGS_DUE: due_ms; else store_ms + due_delay_ms. If
        # due_ms is set as well, the tags code is tags_hash, and due_ms becomes store_ms +
        # due_delay_ms.
        ("due_delay_ms", "i8"),
        # numbers that the encoder appends to the property text, -1: none
        ("out_ms", "i8"),  # TIMER_OUT_MS
        ("due_ms", "i8"),  # DUEMQ_DUE_MS: the exact due time, if TIMER_* do not contain it
        ("enqueue_ms", "i8"),  # TIMER_ENQUEUE_MS, left out if the text would be too long
        ("dequeue_ms", "i8"),  # TIMER_DEQUEUE_MS, likewise
        # results
        ("store_ms", "i8"),
        ("phys_offset", "i8"),
        ("queue_offset", "i8"),
        ("tags_code", "i8"),
        ("record_size", "i4"),
        ("queue_slot", "i4"),
    ],
    align=True,
)

DELAY_ILLEGAL: Final = -2_147_483_648
TAGS_DUE: Final = -2
TIMER_NONE, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_ILLEGAL = 0, 1, 2, 3, -1
PROP_WAIT_FALSE: Final = 0x01
PROP_TRAN_MSG: Final = 0x02
PROP_TIMER_OUT: Final = 0x04
PROP_TIMER_DEL: Final = 0x08
PROP_REAL_TOPIC: Final = 0x10
PROP_INNER_BATCH: Final = 0x20
PROP_SHARDED: Final = 0x80  # __SHARDINGKEY: the producer requests order
PROP_TIMER_STALE: Final = 0x40  # one of log.batch.TIMER_STALE_NAMES
PROP_PRIORITY: Final = 0x100  # _SYS_MSG_PRIORITY_, of messages that Python decodes
PROP_SCHEDULE: Final = 0x200  # a name that begins with DUEMQ_SCHEDULE; Python decodes them

# Result of a scan of log bytes: one row per record, in native byte order.
SCANNED = np.dtype(
    [
        ("phys_offset", "i8"),
        ("queue_offset", "i8"),
        ("store_ms", "i8"),
        ("prepared_offset", "i8"),
        ("tags_hash", "i8"),
        ("record_size", "i4"),
        ("queue_id", "i4"),
        ("sys_flag", "i4"),
        ("topic_index", "i4"),  # -1: not in the topic table
        ("delay_level", "i4"),
        ("topic_pos", "i4"),  # positions count from the start of the record
        ("topic_len", "i4"),
        ("body_pos", "i4"),
        ("body_len", "i4"),
        ("prop_pos", "i4"),
        ("prop_len", "i4"),
        ("damage", "i4"),  # 0, or DAMAGE_*
    ],
    align=True,
)
DAMAGE_BODY_CRC: Final = 1
IN_NO_QUEUE: Final = -2  # topic_index of a record that gets no unit

# A record of a master's log that gets a queue unit, native byte order; names as in PUT.
QUEUED = np.dtype(
    [
        ("phys_offset", "i8"),
        ("queue_offset", "i8"),
        ("tags_code", "i8"),
        ("record_size", "i4"),
        ("queue_slot", "i4"),
        ("sys_flag", "i4"),
        ("status", "i4"),  # 0: it gets a unit
    ],
    align=True,
)

# A key of a record for an index file, in native byte order.
# `at_begin`: 1 for an item whose time is that of the file, also of records stored before it.
KEYED = np.dtype(
    [("phys_offset", "i8"), ("store_ms", "i8"), ("key_hash", "i4"), ("at_begin", "i4")], align=True
)

# A consume queue unit in native byte order.
# `index`: its number among the units that were read together.
UNIT = np.dtype([("phys_offset", "i8"), ("tags_code", "i8"), ("size", "i4"), ("index", "i4")])


def packer(layout: np.dtype[Any]) -> struct.Struct:
    """Return the packer of one record of `layout` (big-endian, no padding)."""
    assert layout.fields is not None
    names = layout.names or ()
    packed = packer_of([(name, layout.fields[name][0].str) for name in names])
    assert packed.size == layout.itemsize
    return packed


def native_columns(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous copy of a structured block in native byte order."""
    return np.ascontiguousarray(block.astype(block.dtype.newbyteorder("=")))
