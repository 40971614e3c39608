"""Evaluation of a filter's program over records. `duemq.filters.evaluation` is its twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from duemq.filters.kernels.numbers import (
    BYTES_MAX,
    compare_doubles,
    is_ascii,
    parse_double,
    parse_whole,
)
from duemq.filters.kernels.values import Ends, find_values, text_equals
from duemq.filters.layout import (
    ABSENT,
    ARGUMENT,
    AT_MOST,
    BOOLEAN,
    DOUBLE,
    ENDS,
    EQUAL,
    ERROR,
    EXTRA,
    FAIL,
    FALSE,
    FOREIGN,
    GREATER,
    JUMP,
    LESS,
    MEMBER,
    MERGE,
    NOT,
    OPERATION,
    OPERATOR,
    PAIR_EQUAL,
    PAIR_ORDER,
    PRESENT,
    PROPERTY,
    PUSH,
    STARTS,
    TEXT,
    TRUE,
    UNDECIDED,
    UNKNOWN,
    WHOLE,
)
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import equals
from message_store.kernels.scan import read_frame
from message_store.layout import Rows

TRUE_TEXT = np.frombuffer(b"true", np.uint8).copy()
LOWER_BIT = 32
SEARCH_STEPS_MAX = 4_096  # of one search; `str.find` needs fewer for long texts
Places = npt.NDArray[np.int64]


@kernel
def holds(order: int, operator: int) -> int:
    """Return TRUE or FALSE for the order of two values (-1, 0, 1) and an operator."""
    if operator == EQUAL:
        return TRUE if order == 0 else FALSE
    if operator == LESS:
        return TRUE if order < 0 else FALSE
    if operator == AT_MOST:
        return TRUE if order <= 0 else FALSE
    if operator == GREATER:
        return TRUE if order > 0 else FALSE
    return TRUE if order >= 0 else FALSE


@kernel
def compare_whole(data: Bytes, pos: int, end: int, number: int, maximum: int, operator: int) -> int:
    """Return the value of the comparison of a text with an Integer or a Long."""
    state, value = parse_whole(data, pos, end, maximum)
    if state != TRUE:
        return state
    return holds(1 if value > number else -1 if value < number else 0, operator)


@kernel
def compare_double(data: Bytes, pos: int, end: int, number: float, operator: int) -> int:
    """Return the value of the comparison of a text with a Double."""
    state, value = parse_double(data, pos, end)
    return holds(compare_doubles(value, number), operator) if state == TRUE else state


@kernel
def is_member(data: Bytes, pos: int, end: int, texts: Bytes, ends: Ends, span: Any) -> bool:
    """Return whether data[pos:end] is one of the texts span[0] to span[1]."""
    for i in range(span[0], span[1]):
        if text_equals(data, pos, end, texts, ends, i):
            return True
    return False


@kernel
def search(
    data: Bytes, pos: int, end: int, texts: Bytes, ends: Ends, index: int, operation: int
) -> int:
    """Return whether data[pos:end] contains, starts with or ends with a text, or UNDECIDED."""
    size = ends[index + 1] - ends[index]
    if size > end - pos:
        return FALSE
    if operation == STARTS:
        return TRUE if text_equals(data, pos, pos + size, texts, ends, index) else FALSE
    if operation == ENDS:
        return TRUE if text_equals(data, end - size, end, texts, ends, index) else FALSE
    # the naive search is quadratic
    if (end - pos) * size > SEARCH_STEPS_MAX:
        return UNDECIDED
    for start in range(pos, end - size + 1):
        if text_equals(data, start, start + size, texts, ends, index):
            return TRUE
    return FALSE


@kernel
def is_true_text(data: Bytes, pos: int, end: int) -> bool:
    """Return whether data[pos:end] is "true" in any letter case, as Boolean.valueOf does."""
    if end - pos != TRUE_TEXT.size:
        return False
    for i in range(TRUE_TEXT.size):
        # sets the bit that differs between cases; no other ASCII letter becomes equal
        if data[pos + i] | LOWER_BIT != TRUE_TEXT[i]:
            return False
    return True


@kernel
def compare_pair(data: Bytes, left: Any, right: Any, operator: int, as_text: bool) -> int:
    """Return the value of the comparison of two properties.

    Args:
        left, right: (start, end) of the values; equal positions: the message lacks it.
    """
    # SQL's NULL: unknown in an order; two absent values are equal in Apache's filter
    if left[0] == left[1]:
        return TRUE if as_text and right[0] == right[1] else UNKNOWN
    if right[0] == right[1]:
        return FALSE if as_text else UNKNOWN
    if as_text:
        size = left[1] - left[0]
        if size > BYTES_MAX:
            return UNDECIDED
        same = size == right[1] - right[0]
        for i in range(size if same else 0):
            same = same and data[left[0] + i] == data[right[0] + i]
        # Different bytes can be equal as text: invalid UTF-8 decodes to U+FFFD.
        certain = same or (is_ascii(data, left[0], left[1]) and is_ascii(data, right[0], right[1]))
        return (TRUE if same else FALSE) if certain else UNDECIDED
    # an order compares numbers
    left_state, left_value = parse_double(data, left[0], left[1])
    right_state, right_value = parse_double(data, right[0], right[1])
    if left_state != TRUE or right_state != TRUE:
        return UNDECIDED
    return holds(compare_doubles(left_value, right_value), operator)


@kernel
def leaf(data: Bytes, places: Places, program: Any, row: Any) -> int:
    """Return the value of an operation on properties."""
    _, whole, doubles, texts, ends = program
    operation, argument = row[OPERATION], row[ARGUMENT]
    if operation == PUSH:
        return argument
    pos, end = places[row[PROPERTY], 0], places[row[PROPERTY], 1]
    if operation == PAIR_EQUAL or operation == PAIR_ORDER:
        other = places[argument]
        as_text = operation == PAIR_EQUAL
        return compare_pair(data, places[row[PROPERTY]], other, row[OPERATOR], as_text)
    # the compiler has decided what an absent property means here
    if pos == end:
        return row[ABSENT]
    if operation == PRESENT:
        return argument
    if operation == WHOLE:
        return compare_whole(data, pos, end, whole[argument], row[EXTRA], row[OPERATOR])
    if operation == DOUBLE:
        return compare_double(data, pos, end, doubles[argument], row[OPERATOR])
    if operation == FAIL:
        return ERROR
    if operation == TEXT:
        is_match = text_equals(data, pos, end, texts, ends, argument)
    elif operation == BOOLEAN:
        is_match = is_true_text(data, pos, end) == (argument == TRUE)
    elif operation == MEMBER:
        is_match = is_member(data, pos, end, texts, ends, (argument, row[EXTRA]))
    else:
        value = search(data, pos, end, texts, ends, argument, operation)
        if value == UNDECIDED:
            return value
        is_match = value == TRUE
    # the operator of these operations is 1 if the condition is negated
    return TRUE if is_match != (row[OPERATOR] == 1) else FALSE


@kernel
def evaluate(data: Bytes, places: Places, program: Any, stack: npt.NDArray[np.int64]) -> int:
    """Return the value of a program: FALSE, TRUE, UNKNOWN, UNDECIDED or ERROR.

    Args:
        places: (names, 2), as `find_values` sets them.
        program: (operations, whole numbers, doubles, texts, ends of texts).
    """
    operations = program[0]
    top, position = -1, 0
    while position < operations.shape[0]:
        row = operations[position]
        operation = row[OPERATION]
        position += 1
        if operation == JUMP:
            # AND and OR stop at the first value that decides
            if stack[top] == row[OPERATOR]:
                position = row[ARGUMENT]
        elif operation == NOT:
            # NOT of UNKNOWN is UNKNOWN
            if stack[top] != UNKNOWN:
                stack[top] = 1 - stack[top]
        elif operation == MERGE:
            right = stack[top]
            top -= 1
            # the right value decides, or leaves the result unknown
            if right == row[ARGUMENT] or right == UNKNOWN:
                stack[top] = right
        else:
            value = leaf(data, places, program, row)
            if value == UNDECIDED or value == ERROR:
                return value
            top += 1
            stack[top] = value
    return stack[0]


@kernel
def match_records(
    data: Bytes,
    units: Rows,
    base: int,
    queue: Any,
    names: Any,
    program: Any,
    scratch: Any,
    out: Bytes,
) -> int:
    """Evaluate a program over the records of `units`; return the number of FOREIGN ones.

    Args:
        data: The log from log offset `base` on.
        queue: (name of the queue's topic, queue id, queue offset of the unit with index 0,
            1 if records must name all three).
        names: (texts, ends) of the properties' names.
        scratch: ((1,) SCANNED, (names, 2) places, (n,) stack).
        out: (n,) results.
    """
    frame, places, stack = scratch[0][0], scratch[1], scratch[2]
    foreign = 0
    for i in range(units.size):
        unit = units[i]
        pos, size = unit["phys_offset"] - base, np.int64(unit["size"])
        # A damaged unit must not give a consumer the message of another queue.
        is_sound = read_frame(data, pos, pos + size, unit["phys_offset"], frame) == size
        if is_sound and queue[3] != 0:
            is_sound = (
                frame["queue_id"] == queue[1]
                and frame["queue_offset"] == queue[2] + unit["index"]
                and equals(data, pos + frame["topic_pos"], np.int64(frame["topic_len"]), queue[0])
            )
        if not is_sound:
            out[i] = FOREIGN
            foreign += 1
            continue
        start = np.int64(pos + frame["prop_pos"])
        find_values(data, start, start + frame["prop_len"], names[0], names[1], places)
        out[i] = evaluate(data, places, program, stack)
    return foreign
