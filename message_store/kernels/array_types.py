"""Numba's types of arrays, found without `numpy.ma`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core.typing.typeof import typeof_impl
from numba.np.numpy_support import from_dtype, map_layout

_numba_type_of: Any = typeof_impl.dispatch(np.ndarray)


def register_array_types() -> None:
    """Find the types of plain arrays without Numba's function, which first loads `numpy.ma`.

    That takes 1.3 MB and 10 ms of a start, only to refuse masked arrays.
    """
    register: Any = typeof_impl.register(np.ndarray)
    register(type_of_array)


def type_of_array(array: Any, context: Any) -> Any:
    """Return the Numba type of an array."""
    if type(array) is not np.ndarray:  # Numba refuses masked arrays
        return _numba_type_of(array, context)
    array_type: Any = types.Array
    return array_type(
        from_dtype(array.dtype),
        array.ndim,
        map_layout(array),
        readonly=not array.flags.writeable,
    )
