"""Kernels that read frames which differ from a template's frame in numbers only.

    template           {"extFields":{...,"offset":"| |","queueId":"| |"},...,"opaque":|    |,...}
    frames     prefix  literal                     17 literal      3 literal         2041 literal

Reading stops at the first frame that does not match or is incomplete. The codec decodes that frame.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from duemq.net.layout import JSON_TYPE, PREFIX_BYTES, WORD_BYTES
from message_store.kernels.bytes import ZERO, Bytes, get_u4
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8

DIGITS_MAX = 18
INT_MAX = 0x7FFF_FFFF
HEADER_TYPE_SHIFT = 24


class Template(NamedTuple):
    """Template of a header: the literals between its numbers.

    Attributes:
        text: (n,) u1: all literals, one after another.
        ends: (numbers + 1,) i8: end of each literal in `text`.
        columns: (numbers,) i8: column of each number in the output; the opaque number has 0.
    """

    text: Bytes
    ends: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]


@kernel
def match_header(data: Bytes, pos: int, end: int, template: Template, numbers: Any) -> bool:
    """Return whether the header data[pos:end] matches a template.

    Args:
        numbers: (columns,) i8: receives the numbers; undefined if the header does not match.
    """
    literal = np.int64(0)
    position = np.int64(pos)
    for part in range(template.ends.size):
        literal_end = template.ends[part]
        if position + literal_end - literal > end:
            return False
        while literal_end - literal >= 8:
            if load_u8(data, position) != load_u8(template.text, literal):
                return False
            position += 8
            literal += 8
        while literal < literal_end:
            if data[position] != template.text[literal]:
                return False
            position += 1
            literal += 1
        if part == template.columns.size:
            return position == end
        start = position
        value = np.int64(0)
        while position < end and position - start <= DIGITS_MAX:
            digit = np.int64(data[position]) - ZERO
            if digit < 0 or digit > 9:
                break
            value = value * 10 + digit
            position += 1
        column = template.columns[part]
        digits = position - start
        if digits == 0 or digits > DIGITS_MAX or (digits > 1 and data[start] == ZERO):
            return False
        if column == 0 and value > INT_MAX:
            return False
        numbers[column] = value
    return False


@kernel
def read_matching(
    data: Bytes,
    pos: int,
    end: int,
    template: Template,
    numbers: npt.NDArray[np.int64],
    frame_ends: npt.NDArray[np.int64],
) -> int:
    """Return the number of leading frames of data[pos:end] that match a template.

    Args:
        numbers: (n, columns) i8: receives the numbers of each frame.
        frame_ends: (n,) i8: receives the position after each frame; n is the maximum number of
            frames.
    """
    for count in range(frame_ends.size):
        header = pos + PREFIX_BYTES
        if header > end:
            return count
        length = np.int64(get_u4(data, pos))
        word = np.int64(get_u4(data, pos + WORD_BYTES))
        if word >> HEADER_TYPE_SHIFT != JSON_TYPE or length != word + WORD_BYTES:
            return count  # another serialize type, or a frame with a body
        if header + word > end:
            return count
        if not match_header(data, header, header + word, template, numbers[count]):
            return count
        pos = header + word
        frame_ends[count] = pos
    return frame_ends.size
