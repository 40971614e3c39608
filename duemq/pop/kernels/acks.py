"""Kernels that group acknowledgement frames by checkpoint and write their responses.

frames --match--> numbers --check--> valid rows --group--> offsets by checkpoint
                                                +--------> success responses
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duemq.net.layout import WORD_BYTES
from duemq.pop.names import REVIVE_QUEUES
from message_store.kernels.bytes import Bytes, copy, digits_len, put_digits, put_i4
from message_store.kernels.kernel import kernel

Numbers = npt.NDArray[np.int64]
# Columns of `numbers`. The handle ends with a queue and an offset of its own (HANDLE_*).
OPAQUE, QUEUE, OFFSET, START, POP_MS, INVISIBLE_MS, REVIVE_QUEUE, HANDLE_QUEUE, HANDLE_OFFSET = (
    range(9)
)
COLUMNS = 9
# Columns of `groups`; the last one is the end of the group's offsets in `offsets`.
GROUP_REVIVE_QUEUE, GROUP_QUEUE, GROUP_START, GROUP_POP_MS, GROUP_INVISIBLE_MS, GROUP_END = range(6)
GROUP_COLUMNS = 6
ALL_KNOWN = -1  # instead of a queue: no bounds are missing
UNKNOWN = -2  # low bound of a queue whose bounds are not loaded


class AckRows(NamedTuple):
    """Columns of up to n acknowledgement frames.

    Attributes:
        numbers: (n, COLUMNS) i8: numbers of each frame.
        frame_ends: (n,) i8: position after each frame.
        group_of: (n,) i8: group of each frame.
        groups: (n, GROUP_COLUMNS) i8: one row for each checkpoint.
        offsets: (n,) i8: acknowledged offsets, group after group.
        responses: (bytes,) u1: responses that report success.
    """

    numbers: Numbers
    frame_ends: Numbers
    group_of: Numbers
    groups: Numbers
    offsets: Numbers
    responses: Bytes


@kernel
def count_valid(numbers: Numbers, count: int, bounds: Numbers) -> tuple[int, int]:
    """Count the leading valid rows.

    Args:
        numbers: (n, COLUMNS) i8: numbers of each frame.
        count: Number of rows to check.
        bounds: (queues, 2) i8: lowest and highest valid offset of each queue, or `UNKNOWN`.
    Returns:
        Number of valid rows, and the queue of the next row if its bounds are missing; `ALL_KNOWN`
        if the next row is invalid, or all rows are valid.
    """
    for row in range(count):
        queue = numbers[row, QUEUE]
        if queue >= bounds.shape[0] or numbers[row, REVIVE_QUEUE] >= REVIVE_QUEUES:
            return row, ALL_KNOWN
        # the caller loads the bounds of this queue and calls again
        if bounds[queue, 0] == UNKNOWN:
            return row, queue
        offset = numbers[row, OFFSET]
        if offset < bounds[queue, 0] or offset > bounds[queue, 1]:
            return row, ALL_KNOWN
    return count, ALL_KNOWN


@kernel
def group_rows(count: int, rows: AckRows) -> int:
    """Group rows by checkpoint, in the order of their first row; return the number of groups."""
    numbers, groups, group_of = rows.numbers, rows.groups, rows.group_of
    group_count = 0
    for row in range(count):
        group = group_count - 1  # the last group first: clients acknowledge in order
        while group >= 0 and not (
            # these five identify a checkpoint
            groups[group, GROUP_START] == numbers[row, START]
            and groups[group, GROUP_POP_MS] == numbers[row, POP_MS]
            and groups[group, GROUP_QUEUE] == numbers[row, QUEUE]
            and groups[group, GROUP_REVIVE_QUEUE] == numbers[row, REVIVE_QUEUE]
            and groups[group, GROUP_INVISIBLE_MS] == numbers[row, INVISIBLE_MS]
        ):
            group -= 1
        if group < 0:
            group = group_count
            group_count += 1
            groups[group, GROUP_REVIVE_QUEUE] = numbers[row, REVIVE_QUEUE]
            groups[group, GROUP_QUEUE] = numbers[row, QUEUE]
            groups[group, GROUP_START] = numbers[row, START]
            groups[group, GROUP_POP_MS] = numbers[row, POP_MS]
            groups[group, GROUP_INVISIBLE_MS] = numbers[row, INVISIBLE_MS]
            groups[group, GROUP_END] = 0
        group_of[row] = group
        groups[group, GROUP_END] += 1
    _order_offsets(count, group_count, rows)
    return group_count


@kernel
def _order_offsets(count: int, group_count: int, rows: AckRows) -> None:
    """Write the offsets group after group, and replace the size of each group by its end."""
    groups = rows.groups
    end = np.int64(0)
    for group in range(group_count):
        size = groups[group, GROUP_END]
        groups[group, GROUP_END] = end  # the next free position, until the group is full
        end += size
    for row in range(count):
        group = rows.group_of[row]
        rows.offsets[groups[group, GROUP_END]] = rows.numbers[row, OFFSET]
        groups[group, GROUP_END] += 1


@kernel
def write_successes(
    numbers: Numbers, count: int, parts: tuple[Bytes, Bytes], responses: Bytes
) -> int:
    """Write a success response for each row; return the number of bytes written.

    Args:
        numbers: (n, COLUMNS) i8: numbers of each frame.
        count: Number of rows.
        parts: (bytes,) u1 each: header of a response before and after the opaque number.
        responses: (bytes,) u1: output.
    """
    head, tail = parts
    position = np.int64(0)
    for row in range(count):
        opaque = numbers[row, OPAQUE]
        size = head.size + digits_len(opaque) + tail.size
        put_i4(responses, position, WORD_BYTES + size)
        # the header is the whole frame: no body
        put_i4(responses, position + WORD_BYTES, size)
        position += 2 * WORD_BYTES
        copy(responses, position, head, 0, head.size)
        position = put_digits(responses, position + head.size, opaque)
        copy(responses, position, tail, 0, tail.size)
        position += tail.size
    return position


@kernel
def group_acks(
    count: int, bounds: Numbers, parts: tuple[Bytes, Bytes], rows: AckRows
) -> tuple[int, int, int, int]:
    """Check and group the first `count` rows, up to the first invalid row.

    Args:
        bounds: (queues, 2) i8: lowest and highest valid offset of each queue, or `UNKNOWN`.
        parts: (bytes,) u1 each: header of a response before and after the opaque number.
    Returns:
        Number of valid rows, of groups and of response bytes, and the queue of the next row if its
        bounds are missing, else `ALL_KNOWN`.
    """
    valid, missing = count_valid(rows.numbers, count, bounds)
    if missing != ALL_KNOWN or valid == 0:
        return valid, 0, 0, missing
    groups = group_rows(valid, rows)
    size = write_successes(rows.numbers, valid, parts, rows.responses)
    return valid, groups, size, missing
