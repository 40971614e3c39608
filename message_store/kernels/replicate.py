"""Queue units for records that a replica copies from its master, compiled."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.encode import has_queue_offset
from message_store.kernels.kernel import kernel
from message_store.kernels.topics import find_topic
from message_store.layout import IN_NO_QUEUE, RECORD_FIXED_BYTES
from message_store.queues.topic_table import TopicArrays

Rows = npt.NDArray[Any]


@kernel
def are_plausible(rows: Rows, last_ms: int, now_ms: int, slack_ms: int, queues_max: int) -> bool:
    """Return False if a header must be examined (`message_store.replication.plausibility_check`).

    Args:
        rows: (n,) `layout.SCANNED`.
        last_ms: Store time of the previous record.
        slack_ms: Difference between store times, and to the clock, that is plausible.
        queues_max: Number of queues that a topic can have.
    """
    before_ms = last_ms
    for i in range(rows.size):
        row = rows[i]
        store_ms, offset = row["store_ms"], row["queue_offset"]
        if store_ms < before_ms - slack_ms or store_ms > max(before_ms, now_ms) + slack_ms:
            return False
        if row["damage"] != 0 or row["queue_id"] < 0 or row["queue_id"] >= queues_max:
            return False
        if offset < 0 or offset > row["phys_offset"] // RECORD_FIXED_BYTES:
            return False
        before_ms = store_ms
    return True


@kernel
def place(data: Bytes, base: int, rows: Rows, first: int, arrays: TopicArrays, out: Rows) -> int:
    """Assign queue offsets to the records in rows[first:]; return the index after the last.

    It stops at the first record whose queue is not in the topic table, or whose queue offset is not
    the next one of its queue. `encode.revert_queue_offsets` reverts the change of the queues.

    Args:
        data: Log bytes from log offset `base` on.
        rows: (n,) `layout.SCANNED`; `tags_hash` is the tags code. Unknown topics are looked up.
        out: (n,) `layout.QUEUED` out.
    """
    for i in range(first, rows.size):
        row, made = rows[i], out[i]
        made["status"] = 1
        if row["topic_index"] == IN_NO_QUEUE or not has_queue_offset(row["sys_flag"]):
            continue
        index = row["topic_index"]
        if index < 0:
            pos = row["phys_offset"] - base + row["topic_pos"]
            index = row["topic_index"] = find_topic(data, pos, row["topic_len"], arrays)
            if index < 0:
                return i
        topic, queue_id = arrays.topics[index], row["queue_id"]
        if queue_id < 0 or queue_id >= topic["slots_len"]:
            return i
        slot = arrays.slot_map[topic["slots_pos"] + queue_id]
        if slot < 0 or arrays.queues[slot]["next_offset"] != row["queue_offset"]:
            return i
        arrays.queues[slot]["next_offset"] += 1
        made["phys_offset"], made["queue_offset"] = row["phys_offset"], row["queue_offset"]
        made["tags_code"], made["record_size"] = row["tags_hash"], row["record_size"]
        made["queue_slot"], made["sys_flag"], made["status"] = slot, row["sys_flag"], 0
    return rows.size
