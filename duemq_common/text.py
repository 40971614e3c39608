"""Text functions: RocketMQ's hash codes and names; numbers of bytes and durations for people."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

UTF16 = f"utf-16-{sys.byteorder[0]}e"  # units in the order of this machine
LOOP_BYTES_MAX = 512  # UTF-16 bytes of a text that a loop hashes; longer ones are hashed by blocks
BLOCK_UNITS = 256
PART_BYTES = 128 * 2 * BLOCK_UNITS  # converted at once, in the cache of the processor
ASCII_MAX = LOOP_BYTES_MAX // 2  # characters of an ASCII text, which is its own UTF-16 units
_BLOCK_POWER = pow(31, BLOCK_UNITS, 1 << 32)
TOPIC_BYTES_MAX = 127
GROUP_BYTES_MAX = 255
_NAME_CHARACTERS = frozenset("%|-_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def java_hash(text: str) -> int:
    """Return `String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit number."""
    value = 0
    if len(text) <= ASCII_MAX and text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFF_FFFF
        return value - (1 << 32) if value >= 1 << 31 else value
    units = text.encode(UTF16, "surrogatepass")
    if len(units) > LOOP_BYTES_MAX:
        value, units = _hash_of_blocks(units)
    for unit in memoryview(units).cast("H"):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _hash_of_blocks(units: bytes) -> tuple[int, bytes]:
    """Return the hash of the leading whole blocks of UTF-16 units, and the other units."""
    import numpy as np  # a client starts without it, and has no such texts

    value, end = 0, len(units) // (2 * BLOCK_UNITS) * (2 * BLOCK_UNITS)
    for begin in range(0, end, PART_BYTES):
        count = min(PART_BYTES, end - begin) // 2
        blocks = np.frombuffer(units, np.uint16, count, begin).reshape(-1, BLOCK_UNITS)
        for part in (blocks.astype(np.uint32) @ _powers()).tolist():
            value = (_BLOCK_POWER * value + part) & 0xFFFF_FFFF
    return value, units[end:]


@cache
def _powers() -> Any:
    import numpy as np

    return np.array([pow(31, BLOCK_UNITS - 1 - i, 1 << 32) for i in range(BLOCK_UNITS)], np.uint32)


def index_hash(text: str) -> int:
    """Return the hash of `topic#key` in index files: never negative."""
    value = java_hash(text)
    return 0 if value == -(1 << 31) else abs(value)


def name_fault(name: str, *, bytes_max: int = TOPIC_BYTES_MAX) -> str | None:
    """Return the fault of a topic or group name, or None. TopicValidator."""
    if not name.strip():
        return "the name is blank"
    if not _NAME_CHARACTERS.issuperset(name):
        return f"{_shown(name)} has a character outside ^[%|a-zA-Z0-9_-]+$"
    if len(name) > bytes_max:
        return f"{_shown(name)} is longer than {bytes_max} characters"
    return None


def _shown(name: str) -> str:
    """Return a name for an error text: only its beginning if the name is too long."""
    return repr(name if len(name) <= GROUP_BYTES_MAX else name[:GROUP_BYTES_MAX] + "...")


def binary_size(size: int) -> str:
    """Return a number of bytes as `50.0 GiB`, below 1024 as `7 B`."""
    if size < 1_024:
        return f"{size} B"
    value, units = float(size), "BKMGTPE"
    power = 0
    while value >= 1_024 and power < len(units) - 1:
        value /= 1_024
        power += 1
    return f"{value:.1f} {units[power]}iB"


def duration(ms: float) -> str:
    """Return a duration in its two largest units: `950 ms`, `3 min 20 s`."""
    if ms < 1_000:
        return f"{ms:,.0f} ms"
    seconds, parts = int(ms) // 1_000, []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
