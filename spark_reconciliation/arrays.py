"""Array types of the audit; all are one-dimensional unless stated otherwise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]
"""Records of a declared layout, as SCANNED or TIMER_UNIT."""
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
"""Offsets, times and keys."""
Words = npt.NDArray[np.uint64]
"""Hashes."""
