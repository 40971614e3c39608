"""Types of arrays, without `numpy.ma`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numba
import numpy as np
import pytest
from numba.core import errors

from message_store import layout
from message_store.kernels.array_types import register_array_types, type_of_array

TIMEOUT_S = 60
typeof: Callable[[object], object] = numba.typeof
PROGRAM = """
import sys
import numpy as np
from numba import typeof
from message_store.kernels.array_types import register_array_types
register_array_types()
print(typeof(np.zeros(1, np.dtype([("name", np.int64)]))), "numpy.ma" in sys.modules)
"""


def read_only() -> np.ndarray:
    array = np.zeros(3, np.int32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, np.uint8),
        np.zeros((3, 4), np.int64),
        np.zeros((3, 4), np.int64, order="F"),
        np.zeros((3, 4), np.int64)[:, 1],
        np.zeros(1, layout.PUT),
        np.frombuffer(b"data", np.uint8),
        read_only(),
    ],
)
def test_types_are_those_of_numba(array: np.ndarray) -> None:
    assert type_of_array(array, None) == typeof(array)


def test_masked_arrays_are_refused() -> None:
    register_array_types()
    with pytest.raises(errors.NumbaTypeError):
        typeof(np.ma.zeros(3))


def test_a_process_does_not_load_masked_arrays() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, timeout=TIMEOUT_S, check=True, capture_output=True, text=True)
    assert done.stdout.split()[-1] == "False"
