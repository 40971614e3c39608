"""Search of a queue for the messages that were stored at a time.

    queue offset   0    1    2    -    -    5        -: lost or damaged, without a time
    stored at     100  200  300            600       at 250: 2

A queue offset without a time has that of the next message. With any other time, such as 0, a search
could pass messages before it.
"""

from __future__ import annotations

from typing import Final

from message_store.log.commit_log import CommitLog
from message_store.log.frames import frame_at
from message_store.queues.consume_queue import ConsumeQueue

UNTIMED_MAX: Final = 256  # damaged messages that one step of a search passes


def search(
    log: CommitLog, queue: ConsumeQueue, bounds: tuple[int, int], time_ms: int, *, upper: bool
) -> int:
    """Return the first queue offset stored at or after `time_ms`, the end if none.

    Args:
        bounds: First queue offset of the search, and the end.
        upper: Return the last one stored at or before it instead.
    """
    low, high = first, end = bounds
    while low < high:
        middle = (low + high) // 2
        stored_ms = time_from(log, queue, middle, high)
        if 0 <= stored_ms < time_ms or (upper and stored_ms == time_ms):
            low = middle + 1
        else:
            high = middle
    if upper:
        low -= 1
    return max(min(low, end), first)


def time_from(log: CommitLog, queue: ConsumeQueue, offset: int, end: int) -> int:
    """Return the store time of the first message with a time in offset..end, -1 if unknown.

    Messages that retention has removed are older than all others: 0.
    """
    for _ in range(UNTIMED_MAX):
        if offset < end:
            offset, phys_offset = queue.message_from(offset)
        if offset >= end:
            break
        if phys_offset < log.min_offset:
            return 0
        row = frame_at(log, phys_offset)
        if row is not None:
            return int(row["store_ms"])
        offset += 1
    return -1
