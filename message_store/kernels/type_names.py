"""Argument types of kernels as text, for the list of kernels to compile.

    int64, const(uint8[::1]), message_store.layout.PUT[::1], (int64, int64)

Numbers and arrays are written as Numba writes them (`[::1]`: contiguous, `[:]`: not); `const(...)`
is an array that cannot be written. A record has the name of its layout, a named tuple that of its
class.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any, Final

import numba
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
