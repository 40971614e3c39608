"""Compiled loops of the near stage; all may run in another thread.

radix_pass, copy_staged   sort loaded timers by (due time, log offset)
merge                     merge two sorted runs
bound, skip_settled       find a position in a run
interleave                order the rows of each millisecond by topic in turn
take_batch                copy the next batch, bounded in rows and bytes
find                      find rows by due time and log offset, and settle them if requested

A settled row stays in its run until it is skipped: its write_ms is the complement, below 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.kernel import kernel
from timer_store.layout import MAGIC_DEFAULT, STAGED_PENDING, Rows

DIGIT_BITS = 11  # of the radix sort; the counters fit into the L1 cache
DIGITS = 1 << DIGIT_BITS
TABLE_TOPIC, TABLE_ROWS = range(2)  # columns of the hash table of `rank`
HASH_FACTOR = 0x9E3779B1  # 2^32 divided by the golden ratio: spreads neighbouring hashes
NO_SPOT = -1  # a settled row has no entry in the table


@kernel
def radix_pass(keys: Any, low: int, shift: int, order: Any, out: Any, counts: Any) -> None:
    """Sort `order` stably by one digit of keys[order] - low, into `out`.

    Args:
        keys: (n,) i8, none below `low`.
        order, out: (n,) i4.
        counts: (DIGITS,) i8, scratch.
    """
    mask = np.uint64(DIGITS - 1)
    # count the keys of each digit
    counts[:] = 0
    for i in range(keys.size):
        counts[np.int64((np.uint64(keys[i] - low) >> np.uint64(shift)) & mask)] += 1
    # counts become positions: where the rows of each digit begin in `out`
    position = np.int64(0)
    for digit in range(DIGITS):
        size = counts[digit]
        counts[digit] = position
        position += size
    # In the order of the previous pass, which makes this one stable.
    for i in range(order.size):
        row = order[i]
        digit = np.int64((np.uint64(keys[row] - low) >> np.uint64(shift)) & mask)
        out[counts[digit]] = row
        counts[digit] += 1


@kernel
def ascends(keys: Any) -> bool:
    """Return whether the keys are in ascending order; equal neighbours are allowed."""
    for i in range(1, keys.size):
        if keys[i] < keys[i - 1]:
            return False
    return True


@kernel
def copy_staged(rows: Rows, order: Any, out: Rows) -> None:
    """Copy STAGED rows[order] to STAGE_ROW `out`."""
    for i in range(order.size):
        row, target = rows[order[i]], out[i]
        target["due_ms"], target["phys_offset"] = row["due_ms"], row["phys_offset"]
        target["pos"], target["write_ms"] = row["pos"], row["write_ms"]
        target["record_size"], target["topic_hash"] = row["record_size"], row["topic_hash"]


@kernel
def merge(a: Rows, b: Rows, out: Rows) -> int:
    """Merge two sorted runs without their settled rows; return the number of merged rows."""
    i, j, n = np.int64(0), np.int64(0), np.int64(0)
    while i < a.size or j < b.size:
        # one run is used up: take the rest of the other
        first = j >= b.size
        if i < a.size and j < b.size:
            due_a, due_b = a[i]["due_ms"], b[j]["due_ms"]
            first = due_a < due_b
            # equal times in log order, as if all had been sorted together
            if due_a == due_b:
                first = a[i]["phys_offset"] <= b[j]["phys_offset"]
        if first:
            # a settled row ends here: it is not copied
            if a[i]["write_ms"] >= 0:
                out[n] = a[i]
                n += 1
            i += 1
        else:
            if b[j]["write_ms"] >= 0:
                out[n] = b[j]
                n += 1
            j += 1
    return n


@kernel
def bound(rows: Rows, first: int, end: int, due_ms: int) -> int:
    """Return the first row in rows[first:end] that is due after `due_ms`, `end` if none."""
    while first < end:
        middle = (first + end) // 2
        if rows[middle]["due_ms"] <= due_ms:
            first = middle + 1
        else:
            end = middle
    return first


@kernel
def skip_settled(rows: Rows, first: int, end: int) -> int:
    """Return the first pending row in rows[first:end], `end` if none."""
    while first < end and rows[first]["write_ms"] < 0:
        first += 1
    return first


@kernel
def is_mixed(rows: Rows) -> bool:
    """Return whether rows of one millisecond have more than one topic; sorted by due time."""
    for i in range(1, rows.size):
        row, before = rows[i], rows[i - 1]
        if row["due_ms"] == before["due_ms"] and row["topic_hash"] != before["topic_hash"]:
            return True
    return False


@kernel
def rank(rows: Rows, spots: Any, ranks: Any, table: Any) -> int:
    """Set ranks[i] to the number of earlier pending rows with the topic of row i; return max + 1.

    Args:
        spots, ranks: (n,) i4 out; spots[i]: row of `table` with the topic of i, or NO_SPOT.
        table: (2^k, 2) i4, 2^k > n, columns TABLE_*; TABLE_ROWS is 0 on entry and on return.
    """
    mask = np.int64(table.shape[0] - 1)
    most = np.int64(1)
    for i in range(rows.size):
        topic = rows[i]["topic_hash"]
        if rows[i]["write_ms"] < 0:
            spots[i] = NO_SPOT
            ranks[i] = 0
            continue
        # open addressing: the row of this topic, else the next free row of the table
        spot = (np.int64(topic) * HASH_FACTOR >> 8) & mask
        while table[spot, TABLE_ROWS] != 0 and table[spot, TABLE_TOPIC] != topic:
            spot = (spot + 1) & mask
        table[spot, TABLE_TOPIC] = topic
        spots[i], ranks[i] = spot, table[spot, TABLE_ROWS]
        table[spot, TABLE_ROWS] += 1
        # the largest number of rows of one topic is the number of rounds
        most = max(most, np.int64(table[spot, TABLE_ROWS]))
    # clear only the used rows: the table is reused for all milliseconds of a run
    for i in range(rows.size):
        if spots[i] != NO_SPOT:
            table[spots[i], TABLE_ROWS] = 0
    return most


@kernel
def interleave(rows: Rows, spots: Any, ranks: Any, starts: Any, table: Any, out: Rows) -> None:
    """Copy sorted rows to `out`, topics in turn within each millisecond.

    The order is the first row of each topic in log order, then the second of each, and so on. O(n).

    Args:
        spots, ranks, table: see `rank`.
        starts: (n + 1,) i4, scratch.
    """
    first, size = np.int64(0), rows.size
    while first < size:
        end = first + 1
        # a group: all rows of one millisecond
        while end < size and rows[end]["due_ms"] == rows[first]["due_ms"]:
            end += 1
        group = rows[first:end]
        rounds = rank(group, spots, ranks, table)
        # a stable counting sort by rank, which keeps the log order within a rank
        starts[: rounds + 1] = 0
        for i in range(group.size):
            starts[ranks[i] + 1] += 1
        # counts become positions: where each rank begins
        for k in range(rounds):
            starts[k + 1] += starts[k]
        for i in range(group.size):
            position = starts[ranks[i]]
            out[first + position] = group[i]
            starts[ranks[i]] = position + 1
        first = end


@kernel
def take_batch(rows: Rows, first: int, end: int, limits: Any, out: Rows) -> Any:
    """Copy the leading pending rows of rows[first:end] to STAGED `out`, up to the limits.

    Args:
        limits: (maximum rows, maximum bytes of their records, 1 if a single row may exceed them).

    Returns (next row, copied rows, their bytes).
    """
    rows_max, bytes_max, may_exceed = limits
    n, total = np.int64(0), np.int64(0)
    while first < end and n < rows_max:
        row = rows[first]
        if row["write_ms"] >= 0:
            size = max(np.int64(row["record_size"]), 0)
            # with `may_exceed`, a row that is larger than the limit is taken alone
            if total + size > bytes_max and not (n == 0 and may_exceed != 0):
                break
            staged = out[n]
            staged["due_ms"], staged["phys_offset"] = row["due_ms"], row["phys_offset"]
            staged["pos"], staged["write_ms"] = row["pos"], row["write_ms"]
            staged["record_size"], staged["topic_hash"] = row["record_size"], row["topic_hash"]
            staged["magic"], staged["state"] = MAGIC_DEFAULT, STAGED_PENDING
            total += size
            n += 1
        first += 1
    return first, n, total


@kernel
def place_of(rows: Rows, first: int, end: int, due_ms: int, phys_offset: int, turns: bool) -> int:
    """Return the index of a row in rows[first:end], -1 if it is absent.

    Args:
        turns: Rows are interleaved by topic within a millisecond, not in log order.
    """
    low, high = bound(rows, first, end, due_ms - 1), end
    # log order within a millisecond: a second binary search
    if not turns:
        while low < high:
            middle = (low + high) // 2
            row = rows[middle]
            if (row["due_ms"], row["phys_offset"]) < (due_ms, phys_offset):
                low = middle + 1
            else:
                high = middle
        high = min(low + 1, end)  # only this row can match
    while low < high and rows[low]["due_ms"] == due_ms:
        if rows[low]["phys_offset"] == phys_offset:
            return low
        low += 1
    return -1


@kernel
def find(rows: Rows, span: Any, phys_offsets: Any, due_ms: Any, settle: bool, is_found: Any) -> int:
    """Find pending timers in rows[first:end]; return the number of timers found.

    Args:
        span: (first, end, 1 if rows are interleaved within a millisecond).
        due_ms: (n,) i8: the due time of each timer.
        settle: Mark the rows as settled, too.
        is_found: (n,) b1 in and out: timers that were found before are skipped.
    """
    first, end, turns = span
    n = np.int64(0)
    for i in range(phys_offsets.size):
        if is_found[i]:
            continue
        index = place_of(rows, first, end, due_ms[i], phys_offsets[i], turns != 0)
        if index >= 0 and rows[index]["write_ms"] >= 0:
            is_found[i] = True
            n += 1
            if settle:
                # the complement is below 0, and keeps the value
                rows[index]["write_ms"] = ~rows[index]["write_ms"]
    return n
