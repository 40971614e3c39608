"""Places of named values in a property text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8, trailing_zeros
from message_store.kernels.names import find_byte
from message_store.layout import ENTRY_END, NAME_END

WORD_BYTES = 8
Ends = npt.NDArray[np.int64]


@kernel
def find_in_words(data: Bytes, pos: int, end: int, byte: int) -> int:
    """Return the position of a byte in data[pos:end], else `end`; compares 8 bytes at a time."""
    ones, tops = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    pattern = np.uint64(byte) * ones
    while end - pos >= WORD_BYTES:
        # Equal bytes become zero; the lowest top bit in `zeros` belongs to the first zero byte.
        word = load_u8(data, np.int64(pos)) ^ pattern
        zeros = (word - ones) & ~word & tops
        if zeros != np.uint64(0):
            return pos + (trailing_zeros(zeros) >> 3)
        pos += WORD_BYTES
    return find_byte(data, pos, end, byte)


@kernel
def text_equals(data: Bytes, pos: int, end: int, texts: Bytes, ends: Ends, index: int) -> bool:
    """Return whether data[pos:end] is the text with number `index` in `texts`.

    Args:
        ends: (n + 1,): text i is texts[ends[i]:ends[i + 1]].
    """
    first = ends[index]
    if end - pos != ends[index + 1] - first:
        return False
    for i in range(end - pos):
        if data[pos + i] != texts[first + i]:
            return False
    return True


@kernel
def find_values(
    data: Bytes, pos: int, end: int, names: Bytes, ends: Ends, places: npt.NDArray[np.int64]
) -> None:
    """Set the places of the values of all names; (0, 0) without one.

    Args:
        names, ends: The names, as `texts` of `text_equals`.
        places: (names, 2): start and end of the last value that is not empty.
    """
    for i in range(places.shape[0]):
        places[i, 0] = places[i, 1] = 0
    while pos < end:
        entry_end = find_in_words(data, pos, end, ENTRY_END)
        name_end = find_in_words(data, pos, entry_end, NAME_END)
        if name_end + 1 < entry_end:
            for i in range(places.shape[0]):
                if text_equals(data, pos, name_end, names, ends, i):
                    places[i, 0], places[i, 1] = name_end + 1, entry_end
                    break
        pos = entry_end + 1
