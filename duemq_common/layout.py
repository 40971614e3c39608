"""Packers of byte layouts, from their fields. Without NumPy, so that a client starts fast."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

Fields = Sequence[tuple[str, str]]
"""Name and NumPy code (`>i4`) of each field of a layout, in order, without padding."""
_CODES: Final = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u4": "I", "u8": "Q"}


def packer(fields: Fields) -> struct.Struct:
    """Return the packer of one record of a layout, big-endian."""
    return struct.Struct(">" + "".join(_CODES[code.lstrip(">|")] for _, code in fields))


def position(name: str, fields: Fields) -> int:
    """Return the byte position of a field."""
    before = [each for each, _ in fields].index(name)
    return packer(fields[:before]).size
