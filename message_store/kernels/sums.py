"""Checksums of blocks of a file: `message_store.log.block_sums`."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, crc32
from message_store.kernels.kernel import kernel
from message_store.layout import SUM_UNKNOWN


@kernel
def sum_blocks(data: Bytes, pos: int, block_bytes: int, out: Any) -> None:
    """Set out (n,) u4 to the CRC-32 of n blocks from data[pos] on; the last may be shorter.

    A CRC that is SUM_UNKNOWN is stored as the next number.
    """
    for i in range(out.size):
        first = pos + i * block_bytes
        size = min(np.int64(block_bytes), np.int64(data.size - first))
        crc = np.uint32(crc32(data, first, size))
        # the value that means "no checksum" must not be a checksum
        out[i] = crc if crc != SUM_UNKNOWN else np.uint32(SUM_UNKNOWN + 1)
