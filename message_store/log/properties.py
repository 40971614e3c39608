"""The property text of a record: name 0x01 value 0x02, repeated. MessageDecoder."""

from __future__ import annotations

from collections.abc import Mapping

NAME_END = "\x01"
ENTRY_END = "\x02"
PROPERTIES_BYTES_MAX = 32_767


def decode_properties(text: bytes) -> dict[str, str]:
    """Return the pairs of an encoded text, as 4.9.x and 5.x read it.

    Pairs with an empty name or value are omitted, a value may contain 0x01, the last of equal
    names applies, a trailing separator is optional. Bytes that are not UTF-8 become U+FFFD.
    """
    pairs = {}
    for entry in text.decode("utf-8", "replace").split(ENTRY_END):
        name, separator, value = entry.partition(NAME_END)
        if name and separator and value:
            pairs[name] = value
    return pairs


def own_id(text: bytes) -> str:
    """Return the first unique id in an encoded text, empty if there is none.

    In a batch of a Java client, each message has its own id, and that of the batch after it.
    """
    names = (entry.partition(NAME_END.encode()) for entry in text.split(ENTRY_END.encode()))
    ids = (value for name, _, value in names if name == b"UNIQ_KEY" and value)
    return next(ids, b"").decode("utf-8", "replace")


def encode_properties(pairs: Mapping[str, str]) -> bytes:
    """Return the text with a trailing separator, as 5.2.0 and later write it."""
    return "".join(f"{k}{NAME_END}{v}{ENTRY_END}" for k, v in pairs.items()).encode()
