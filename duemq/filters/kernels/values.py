"""Places of named values in a property text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.properties import find_byte
from message_store.layout import ENTRY_END, NAME_END

Ends = npt.NDArray[np.int64]


@kernel
def text_equals(data: Bytes, pos: int, end: int, texts: Bytes, ends: Ends, index: int) -> bool:
    """Return whether data[pos:end] is a text of `texts`.

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
        name_end = pos
        while name_end < end and data[name_end] != NAME_END and data[name_end] != ENTRY_END:
            name_end += 1
        if name_end == end:
            return
        if data[name_end] == ENTRY_END:  # an entry without a value
            pos = name_end + 1
            continue
        value_end = find_byte(data, name_end + 1, end, ENTRY_END)
        if value_end > name_end + 1:
            for i in range(places.shape[0]):
                if text_equals(data, pos, name_end, names, ends, i):
                    places[i, 0], places[i, 1] = name_end + 1, value_end
                    break
        pos = value_end + 1
