"""Entry points of kernels: the types of their arguments are those of Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import typeof

from message_store import layout
from message_store.kernels.kernel import entry

ROWS = np.zeros(4, layout.PUT)
READ_ONLY = ROWS[:]
READ_ONLY.flags.writeable = False
ALIGNED = np.dtype([("a", "i1"), ("b", "i8")], align=True)
EQUAL_TO_ALIGNED = np.dtype(
    {"names": ["a", "b"], "formats": ["i1", "i8"], "offsets": [0, 8], "itemsize": 16}
)


class FakeKernel:
    """Kernel whose entry point for some types is these types."""

    def compile(self, types: tuple[object, ...]) -> tuple[object, ...]:
        return types


@pytest.mark.parametrize(
    "argument",
    [
        ROWS,
        READ_ONLY,
        ROWS[::2],
        np.zeros((2, 3), layout.PUT),
        np.asfortranarray(np.zeros((2, 3), layout.PUT)),
        np.zeros(2, ALIGNED),
        np.zeros(2, EQUAL_TO_ALIGNED),
        np.zeros(3, np.int64),
        ROWS[0],
        (ROWS, 0),
        ((READ_ONLY, np.zeros(2)), 1.0, b"x"),
        (ROWS, ROWS),
        (),
        1 << 63,
        True,
    ],
    ids=[
        "rows",
        "read-only",
        "every second",
        "two dimensions",
        "columns first",
        "aligned",
        "equal to aligned",
        "numbers",
        "one row",
        "tuple",
        "tuple in a tuple",
        "same rows twice",
        "empty tuple",
        "large number",
        "bool",
    ],
)
def test_the_types_of_an_entry_point_are_those_of_a_call(argument: object) -> None:
    kernel: Any = FakeKernel()
    type_of: Any = typeof
    for _ in range(2):
        types: Any = entry(kernel, argument, 7)
        assert types == (type_of(argument), type_of(7))
