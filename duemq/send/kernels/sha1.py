"""Compiled SHA-1 for HMAC, block by block.

HMAC hashes a key block before the content and another before the inner digest. Both depend only on
the secret, so the states after them are cached (`duemq.send.grants.key_states`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import kernel
from message_store.kernels.memory import load_u8

Words = npt.NDArray[np.uint32]
BLOCK_BYTES = 64
DIGEST_BYTES = 20
STATE_WORDS = 5
SCHEDULE_WORDS = 80
START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
K0, K1, K2, K3 = 0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6
LOW = 0xFFFFFFFF
SWAP_8 = np.uint64(0x00FF00FF00FF00FF)
SWAP_16 = np.uint64(0x0000FFFF0000FFFF)


@kernel
def rotate(value: int, count: int) -> Any:
    """Return 32 bits rotated to the left."""
    word = np.uint32(value)
    return np.uint32(np.uint32(word << np.uint32(count)) | (word >> np.uint32(32 - count)))


@kernel
def expand(words: Words, data: Bytes, pos: int) -> None:
    """Write the message schedule of data[pos:pos+64]."""
    for i in range(8):
        pair = load_u8(data, np.int64(pos + 8 * i))
        # SHA-1 reads big-endian words: reverse the bytes of each 32-bit half
        pair = (pair & SWAP_8) << np.uint64(8) | (pair >> np.uint64(8)) & SWAP_8
        pair = (pair & SWAP_16) << np.uint64(16) | (pair >> np.uint64(16)) & SWAP_16
        words[2 * i] = np.uint32(pair)
        words[2 * i + 1] = np.uint32(pair >> np.uint64(32))
    for t in range(16, SCHEDULE_WORDS):
        mixed = words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16]
        words[t] = rotate(mixed, 1)


@kernel
def add_block(state: Words, words: Words, data: Bytes, pos: int) -> None:
    """Add the block data[pos:pos+64] to `state` (5,); `words` (80,) is scratch."""
    expand(words, data, pos)
    a, b, c, d, e = state[0], state[1], state[2], state[3], state[4]
    for t in range(20):
        x = np.uint32(rotate(a, 5) + (d ^ (b & (c ^ d))) + e + np.uint32(K0) + words[t])
        # the round of FIPS 180-4, 6.1.2
        e, d, c, b, a = d, c, rotate(b, 30), a, x
    for t in range(20, 40):
        x = np.uint32(rotate(a, 5) + (b ^ c ^ d) + e + np.uint32(K1) + words[t])
        e, d, c, b, a = d, c, rotate(b, 30), a, x
    for t in range(40, 60):
        x = np.uint32(rotate(a, 5) + ((b & c) | (d & (b | c))) + e + np.uint32(K2) + words[t])
        e, d, c, b, a = d, c, rotate(b, 30), a, x
    for t in range(60, 80):
        x = np.uint32(rotate(a, 5) + (b ^ c ^ d) + e + np.uint32(K3) + words[t])
        e, d, c, b, a = d, c, rotate(b, 30), a, x
    state[0] = np.uint32(state[0] + a)
    state[1] = np.uint32(state[1] + b)
    state[2] = np.uint32(state[2] + c)
    state[3] = np.uint32(state[3] + d)
    state[4] = np.uint32(state[4] + e)


@kernel
def add_last(state: Words, words: Words, last: Bytes, used: int, total_bytes: int) -> None:
    """Add the last bytes of the content, last[:used], with padding and length.

    Args:
        last: (128,) scratch; `used` is less than 64.
        total_bytes: Length of the whole content, including the blocks already in `state`.
    """
    # one bit after the content, zeros, and the length in bits (FIPS 180-4, 5.1.1)
    last[used] = 0x80
    # the mark and the length need nine bytes: else a second block
    end = BLOCK_BYTES if used + 9 <= BLOCK_BYTES else 2 * BLOCK_BYTES
    for i in range(used + 1, end - 8):
        last[i] = 0
    bits = np.uint64(total_bytes) * np.uint64(8)
    for i in range(8):
        last[end - 8 + i] = (bits >> np.uint64(56 - 8 * i)) & np.uint64(255)
    for pos in range(0, end, BLOCK_BYTES):
        add_block(state, words, last, pos)


@kernel
def put_digest(out: Bytes, state: Words) -> None:
    """Write the 20 bytes of a state."""
    for i in range(STATE_WORDS):
        for k in range(4):
            out[4 * i + k] = (state[i] >> np.uint32(24 - 8 * k)) & np.uint32(255)
