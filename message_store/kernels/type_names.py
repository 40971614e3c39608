"""Argument types of kernels as text, for the list of kernels to compile.

    int64, const(uint8[::1]), message_store.layout.PUT[::1], (int64, int64)

Numbers and arrays are written as Numba writes them (`[::1]`: contiguous, `[:]`: not); `const(...)`
is an array that cannot be written. A record has the name of its layout, a named tuple that of its
class.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numba
import numpy as np
from numba import types

SCALARS: Final = {
    "bool": types.boolean,
    "none": types.none,
    **{
        name: getattr(types, name)
        for name in (
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float32",
            "float64",
        )
    },
}
_TOKEN: Final = re.compile(r"[\w.]+|\[[:,1]*\]|[(),]")
TUPLE_OF: Final[Any] = types.BaseTuple.from_types


@cache
def types_of(text: str) -> tuple[Any, ...]:
    """Return the Numba types that a comma-separated list names.

    The list is not parsed by `ast`: in CPython 3.11 two threads that do so at the same time may get
    a SystemError (gh-106905).

    Raises:
        ValueError: The text is malformed.
        AttributeError, ImportError: A layout or a class does not exist.
    """
    dense = text.replace(" ", "")
    tokens = _TOKEN.findall(dense)[::-1]
    if len(dense) != sum(map(len, tokens)):
        raise ValueError(f"{text} is not a type of a kernel's argument")
    members = _list_of(tokens)
    if tokens:
        raise ValueError(f"{text} is not a type of a kernel's argument: a bracket is closed twice")
    return members


def _list_of(tokens: list[str]) -> tuple[Any, ...]:
    """Take types up to a closing bracket or the end; the first token is the last of the list."""
    members = []
    while tokens and tokens[-1] != ")":
        members.append(_type_of(tokens))
        if tokens and tokens[-1] == ",":
            tokens.pop()
    return tuple(members)


def _type_of(tokens: list[str]) -> Any:
    word = tokens.pop()
    if word in {",", "["} or word.startswith("["):
        raise ValueError(f"{word} is not a type of a kernel's argument")
    if word == "(":
        return TUPLE_OF(_bracketed(tokens))
    if tokens and tokens[-1] == "(":
        tokens.pop()
        members = _bracketed(tokens)
        if word != "const":
            return TUPLE_OF(members, named(word))
        [array] = members
        if not isinstance(array, types.Array):
            raise ValueError(f"const({array}) is not a type of a kernel's argument")
        return array.copy(readonly=True)
    if word not in SCALARS and "." not in word:
        raise ValueError(f"{word} is not a type of a kernel's argument")
    element = SCALARS[word] if word in SCALARS else numba.from_dtype(named(word))
    if not tokens or not tokens[-1].startswith("["):
        return element
    axes = tokens.pop()[1:-1].split(",")
    return types.Array(element, len(axes), "C" if axes[-1].strip() == "::1" else "A")


def _bracketed(tokens: list[str]) -> tuple[Any, ...]:
    members = _list_of(tokens)
    if not tokens:
        raise ValueError("a bracket of a kernel's arguments is not closed")
    tokens.pop()
    return members


def named(name: str) -> Any:
    """Return the attribute of a module that a dotted name denotes."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


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
        within = tuple(numba_type)
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
