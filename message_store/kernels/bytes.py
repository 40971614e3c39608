"""Big-endian numbers, decimal digits and CRC-32 on byte arrays, for other kernels to call.

Only these functions depend on the byte order of the disk. Positions are unsigned: a signed index
may count from the end of an array, which takes a comparison for each byte and keeps LLVM from
joining the bytes of a number into one load or store that swaps them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.crc import crc32 as crc32
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import copy_bytes, leading_zeros, load_u4

Bytes = npt.NDArray[np.uint8]
POWERS = np.array([10**n for n in range(20)], np.uint64)
ZERO, MINUS = ord("0"), ord("-")
PAIRS = np.array([divmod(n, 10) for n in range(100)], np.uint8) + np.uint8(ZERO)  # two digits


@kernel
def put_i2(out: Bytes, pos: int, value: int) -> None:
    """Write a signed number of 2 bytes."""
    start = np.uint64(pos)
    out[start] = (value >> 8) & 255
    out[start + np.uint64(1)] = value & 255


@kernel
def put_i4(out: Bytes, pos: int, value: int) -> None:
    """Write a signed number of 4 bytes."""
    # two's complement: the shifts below must not extend the sign
    v, start = np.uint32(value), np.uint64(pos)
    for i in range(4):
        out[start + np.uint64(i)] = (v >> np.uint32(24 - 8 * i)) & np.uint32(255)


@kernel
def put_i8(out: Bytes, pos: int, value: int) -> None:
    """Write a signed number of 8 bytes."""
    # two's complement: the shifts below must not extend the sign
    v, start = np.uint64(value), np.uint64(pos)
    for i in range(8):
        out[start + np.uint64(i)] = (v >> np.uint64(56 - 8 * i)) & np.uint64(255)


@kernel
def get_i2(data: Bytes, pos: int) -> int:
    """Return the signed number of 2 bytes at data[pos]."""
    start = np.uint64(pos)
    high, low = np.uint16(data[start]), np.uint16(data[start + np.uint64(1)])
    # 16 bits first, so that the conversion to 64 bits extends the sign
    return np.int64(np.int16((high << np.uint16(8)) | low))


@kernel
def get_i4(data: Bytes, pos: int) -> int:
    """Return the signed number of 4 bytes at data[pos]."""
    # one load: LLVM would split a loop over the bytes, as in `get_u8`, when it extends the sign
    w = load_u4(data, np.int64(pos))
    high = (w << np.uint32(24)) | ((w << np.uint32(8)) & np.uint32(0xFF0000))
    low = ((w >> np.uint32(8)) & np.uint32(0xFF00)) | (w >> np.uint32(24))
    return np.int64(np.int32(high | low))


@kernel
def get_u4(data: Bytes, pos: int) -> int:
    """Return the unsigned number of 4 bytes at data[pos]."""
    return np.int64(get_i4(data, pos) & 0xFFFFFFFF)


@kernel
def get_u8(data: Bytes, pos: int) -> Any:
    """Return the unsigned number of 8 bytes at data[pos]."""
    v, start = np.uint64(0), np.uint64(pos)
    for i in range(8):
        v = (v << np.uint64(8)) | np.uint64(data[start + np.uint64(i)])
    return v


@kernel
def get_i8(data: Bytes, pos: int) -> int:
    """Return the signed number of 8 bytes at data[pos]."""
    return np.int64(get_u8(data, pos))


@kernel
def copy(out: Bytes, out_pos: int, data: Bytes, pos: int, size: int) -> None:
    """Copy data[pos:pos+size] to out[out_pos:]; a size below 1 copies nothing."""
    if size > 0:
        copy_bytes(out, np.int64(out_pos), data, np.int64(pos), np.int64(size))


@kernel
def digits_len(value: int) -> int:
    """Return the number of characters that `put_digits` writes for `value`."""
    # 0 has one digit; unsigned, because the absolute value of the least number has 64 bits
    rest = max(np.uint64(value if value >= 0 else -value), np.uint64(1))
    # bits * log10(2), where log10(2) is about 1233 / 4096: right, or one digit too few
    least = (64 - leading_zeros(rest)) * 1_233 >> 12
    count = least + (1 if rest >= POWERS[least] else 0)
    # room for the minus sign
    return count if value >= 0 else count + 1


@kernel
def put_digits(out: Bytes, pos: int, value: int) -> int:
    """Write `value` in decimal; return the position after it."""
    end = pos + digits_len(value)
    if value < 0:
        out[pos] = MINUS
    rest = np.uint64(value if value >= 0 else -value)
    start = end
    # two digits a step, from the last one on
    while rest >= np.uint64(10):
        pair = np.int64(rest % np.uint64(100))
        rest //= np.uint64(100)
        start -= 2
        out[start], out[start + 1] = PAIRS[pair, 0], PAIRS[pair, 1]
    # the remaining single digit, or the digit of 0
    if rest > np.uint64(0) or start == end:
        out[start - 1] = np.uint64(ZERO) + rest
    return end
