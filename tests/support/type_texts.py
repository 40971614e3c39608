"""Texts of Numba types, for the list of kernels to compile: the inverse of `types_of`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
from numba import types

from message_store.kernels.type_names import SCALARS, types_of


def text_of(signature: tuple[Any, ...], layouts: Mapping[Any, str]) -> str:
    """Return the text of a signature, the inverse of `types_of`.

    Args:
        layouts: Dotted names of layouts, by the Numba type of their records.
    Raises:
        ValueError: A type has no text.
    """
    text = ", ".join(_text_of(each, layouts) for each in signature)
    if types_of(text) != signature:
        raise ValueError(f"{text} is not {signature}")
    return text


def _text_of(numba_type: Any, layouts: Mapping[Any, str]) -> str:
    for name, scalar in SCALARS.items():
        if numba_type == scalar:
            return name
    if isinstance(numba_type, types.Record) and numba_type in layouts:
        return layouts[numba_type]
    if isinstance(numba_type, types.Array):
        last = "::1" if numba_type.layout == "C" else ":"
        text = f"{_text_of(numba_type.dtype, layouts)}[{':, ' * (numba_type.ndim - 1)}{last}]"
        return f"const({text})" if not numba_type.mutable else text
    if isinstance(numba_type, types.BaseTuple):  # iterates over its types
        within: tuple[Any, ...] = tuple(numba_type)
        members = ", ".join(_text_of(each, layouts) for each in within)
        kind = getattr(numba_type, "instance_class", tuple)
        if kind is tuple:
            return f"({members},)" if len(within) == 1 else f"({members})"
        return f"{kind.__module__}.{kind.__qualname__}({members})"
    raise ValueError(f"{numba_type} is not a type of a kernel's argument")


def layouts_of(modules: Mapping[str, Any]) -> dict[Any, str]:
    """Return the dotted names of the layouts in modules, by the Numba type of their records."""
    names: dict[Any, str] = {}
    for module in sorted(modules, key=lambda name: ("layout" not in name, name)):
        for attribute, value in sorted(vars(modules[module]).items()):
            if isinstance(value, np.dtype) and value.names and value.isnative:
                names.setdefault(numba.from_dtype(value), f"{module}.{attribute}")
    return names
