"""Search for a text in the records of a scan, without decoding them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from message_store.reader import StoreReader

Rows = npt.NDArray[np.void]


def rows_with(store: StoreReader, rows: Rows, text: bytes) -> Rows:
    """Return the rows of records that contain a text; those that cannot be read are left out.

    Args:
        rows: (n,) `layout.SCANNED` of one chunk of `StoreReader.scan`, or a part of it.
    """
    if not rows.size:
        return rows
    search = re.compile(re.escape(text)).search
    first, last = int(rows["phys_offset"][0]), rows[-1]
    end = int(last["phys_offset"]) + int(last["record_size"])
    data = store.log_view(first, end - first).data
    starts = rows["phys_offset"] - first
    bounds = zip(starts.tolist(), (starts + rows["record_size"]).tolist(), strict=True)
    return rows[[search(data, start, stop) is not None for start, stop in bounds]]
