"""Queue units for records that a replica copies from its master, compiled."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.encode import has_queue_offset
from message_store.kernels.kernel import kernel
from message_store.kernels.topics import find_topic
from message_store.layout import IN_NO_QUEUE
from message_store.queues.topic_table import TopicArrays

Rows = npt.NDArray[Any]


@kernel
def place(data: Bytes, base: int, rows: Rows, first: int, arrays: TopicArrays, out: Rows) -> int:
    """Assign queue offsets to the records in rows[first:]; return the index after the last.

    It stops at the first record whose body is damaged, whose queue is not in the topic table, or
    whose queue offset is not the next one of its queue. `encode.revert_queue_offsets` reverts the
    change of the queues.

    Args:
        data: Log bytes from log offset `base` on.
        rows: (n,) `layout.SCANNED`; `tags_hash` is the tags code. Unknown topics are looked up.
        out: (n,) `layout.QUEUED` out.
    """
    for i in range(first, rows.size):
        row, made = rows[i], out[i]
        made["status"] = 1
        if row["damage"] != 0:
            return i
        # such records take space in the log only
        if row["topic_index"] == IN_NO_QUEUE or not has_queue_offset(row["sys_flag"]):
            continue
        index = row["topic_index"]
        # The topic was unknown when the log was scanned; it may have been created since.
        if index < 0:
            pos = row["phys_offset"] - base + row["topic_pos"]
            index = row["topic_index"] = find_topic(data, pos, row["topic_len"], arrays)
            if index < 0:
                return i
        topic, queue_id = arrays.topics[index], row["queue_id"]
        if queue_id < 0 or queue_id >= topic["slots_len"]:
            return i
        slot = arrays.slot_map[topic["slots_pos"] + queue_id]
        # Another offset means that a record of this queue is missing or repeated.
        if slot < 0 or arrays.queues[slot]["next_offset"] != row["queue_offset"]:
            return i
        # the next record of this queue in the same call must follow this one
        arrays.queues[slot]["next_offset"] += 1
        made["phys_offset"], made["queue_offset"] = row["phys_offset"], row["queue_offset"]
        made["tags_code"], made["record_size"] = row["tags_hash"], row["record_size"]
        made["queue_slot"], made["sys_flag"], made["status"] = slot, row["sys_flag"], 0
    return rows.size
