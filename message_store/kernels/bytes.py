"""Big-endian numbers, decimal digits and CRC-32 on byte arrays, for other kernels to call.

The byte order of the disk is spelled out here once, for compiled code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.crc import crc32 as crc32
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import copy_bytes

Bytes = npt.NDArray[np.uint8]


@kernel
def put_i2(out: Bytes, pos: int, value: int) -> None:
    out[pos] = (value >> 8) & 255
    out[pos + 1] = value & 255


@kernel
def put_i4(out: Bytes, pos: int, value: int) -> None:
    v = np.uint32(value)
    for i in range(4):
        out[pos + i] = (v >> np.uint32(24 - 8 * i)) & np.uint32(255)


@kernel
def put_i8(out: Bytes, pos: int, value: int) -> None:
    v = np.uint64(value)
    for i in range(8):
        out[pos + i] = (v >> np.uint64(56 - 8 * i)) & np.uint64(255)


@kernel
def get_i2(data: Bytes, pos: int) -> int:
    return np.int64(np.int16((np.uint16(data[pos]) << np.uint16(8)) | np.uint16(data[pos + 1])))


@kernel
def get_i4(data: Bytes, pos: int) -> int:
    v = np.uint32(0)
    for i in range(4):
        v = (v << np.uint32(8)) | np.uint32(data[pos + i])
    return np.int64(np.int32(v))


@kernel
def get_u4(data: Bytes, pos: int) -> int:
    return np.int64(get_i4(data, pos) & 0xFFFFFFFF)


@kernel
def get_i8(data: Bytes, pos: int) -> int:
    v = np.uint64(0)
    for i in range(8):
        v = (v << np.uint64(8)) | np.uint64(data[pos + i])
    return np.int64(v)


@kernel
def get_u8(data: Bytes, pos: int) -> Any:
    v = np.uint64(0)
    for i in range(8):
        v = (v << np.uint64(8)) | np.uint64(data[pos + i])
    return v


@kernel
def copy(out: Bytes, out_pos: int, data: Bytes, pos: int, size: int) -> None:
    """Copy data[pos:pos+size] to out[out_pos:]; a size below 1 copies nothing."""
    if size > 0:
        copy_bytes(out, np.int64(out_pos), data, np.int64(pos), np.int64(size))


@kernel
def digits_len(value: int) -> int:
    """Return how many characters `put_digits` writes for `value`."""
    count = 1 if value >= 0 else 2
    rest = value if value >= 0 else -value
    while rest > 9:
        rest //= 10
        count += 1
    return count


@kernel
def put_digits(out: Bytes, pos: int, value: int) -> int:
    """Write `value` in decimal; return the position behind it."""
    end = pos + digits_len(value)
    rest = value
    if value < 0:
        out[pos] = 45
        rest = -value
    at = end - 1
    while True:
        out[at] = 48 + rest % 10
        rest //= 10
        if rest == 0:
            return end
        at -= 1
