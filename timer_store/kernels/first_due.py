"""Compiled selection of the first timers of a slot that are due later than a given one."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_i8
from message_store.kernels.kernel import kernel
from timer_store.kernels.chain import (
    MAGIC_AT,
    PHYS_AT,
    PREV_AT,
    WALK_FAULT,
    WALK_LEFT,
    WALK_MARKERS,
    WALK_POS,
    WALK_ROWS,
    WALK_SETTLED,
    due_of,
    find_sorted,
    is_marker,
    slot_fault,
    track_order,
)

HEAP_DUE, HEAP_PHYS, HEAP_POS = range(3)  # columns of the heap of `collect_first`


@kernel
def is_before(heap: Any, i: int, due_ms: int, phys_offset: int) -> bool:
    """Return whether heap[i] is due before (due_ms, phys_offset)."""
    if heap[i, HEAP_DUE] == due_ms:
        return heap[i, HEAP_PHYS] < phys_offset
    return heap[i, HEAP_DUE] < due_ms


@kernel
def move_entry(heap: Any, source: int, target: int) -> None:
    """Copy an entry of a heap to another index."""
    heap[target, HEAP_DUE] = heap[source, HEAP_DUE]
    heap[target, HEAP_PHYS] = heap[source, HEAP_PHYS]
    heap[target, HEAP_POS] = heap[source, HEAP_POS]


@kernel
def sift(heap: Any, count: int, due_ms: int, phys_offset: int, pos: int) -> None:
    """Replace heap[0], which is due last of all, by a timer that is due before it."""
    i = np.int64(0)
    while True:
        child = 2 * i + 1
        if child >= count:
            break
        # The child that is due later moves up, unless the new timer is due later than both.
        other = child + 1
        if other < count and is_before(heap, child, heap[other, HEAP_DUE], heap[other, HEAP_PHYS]):
            child = other
        # both children are due before the new timer: its place is here
        if is_before(heap, child, due_ms, phys_offset):
            break
        move_entry(heap, child, i)
        i = child
    heap[i, HEAP_DUE], heap[i, HEAP_PHYS], heap[i, HEAP_POS] = due_ms, phys_offset, pos


@kernel
def push(heap: Any, count: int, due_ms: int, phys_offset: int, pos: int) -> None:
    """Add a timer to a heap of `count` timers, which has room for it."""
    i = np.int64(count)
    while i > 0:
        parent = (i - 1) >> 1
        # a parent is due later than its children
        if not is_before(heap, parent, due_ms, phys_offset):
            break
        move_entry(heap, parent, i)
        i = parent
    heap[i, HEAP_DUE], heap[i, HEAP_PHYS], heap[i, HEAP_POS] = due_ms, phys_offset, pos


@kernel
def collect_first(
    data: Bytes, base: int, slot: Any, after: Any, skip: Any, walk: Any, heap: Any
) -> int:
    """Follow one chain through a file; keep the first timers that are due later than `after`.

    Args:
        slot: (tick, precision in ms, roll window in ms).
        after: (due_ms, phys_offset); timers up to this one, in this order, are omitted.
        walk: (WALK_SIZE,) i8; WALK_ROWS counts the timers after `after`, kept or not.
        heap: (n, 3) i8, columns HEAP_*; heap[0] is due last.
    """
    after_ms, after_phys = after
    pos = walk[WALK_POS]
    while pos >= base:
        start = pos - base
        walk[WALK_FAULT] = slot_fault(data, start, pos, slot)
        if walk[WALK_FAULT] != 0:
            return WALK_LEFT
        phys_offset = get_i8(data, start + PHYS_AT)
        track_order(walk, phys_offset)
        due_ms = due_of(data, start, slot[1])
        settled = due_ms < 0 or (
            skip.size > 0 and find_sorted(skip, 0, skip.size, phys_offset) >= 0
        )
        if settled:
            walk[WALK_SETTLED] += 1
        elif is_marker(get_i4(data, start + MAGIC_AT)):
            walk[WALK_MARKERS] += 1
        elif due_ms > after_ms or (due_ms == after_ms and phys_offset > after_phys):
            # A full heap drops its last timer for one that is due before it.
            if walk[WALK_ROWS] < heap.shape[0]:
                push(heap, walk[WALK_ROWS], due_ms, phys_offset, pos)
            elif not is_before(heap, 0, due_ms, phys_offset):
                sift(heap, heap.shape[0], due_ms, phys_offset, pos)
            # timers that the heap has no room for count, too: the caller learns that there are more
            walk[WALK_ROWS] += 1
        pos = get_i8(data, start + PREV_AT)
        walk[WALK_POS] = pos
    return WALK_LEFT
