"""Byte layouts of Apache's HA protocol (DefaultHA), big-endian, the same in 4.9 and 5.x.

Source: DefaultHAConnection, DefaultHAClient
"""

from __future__ import annotations

from typing import Final

import numpy as np

from message_store.layout import packer

# Replica to master: the end of its log, which is a request and an acknowledgement in one.
HA_REPORT = np.dtype([("log_end", ">i8")])
assert HA_REPORT.itemsize == 8
REPORT: Final = packer(HA_REPORT)

# Master to replica, before `size` bytes of its log; 0: a heartbeat.
HA_TRANSFER = np.dtype([("offset", ">i8"), ("size", ">i4")])
assert HA_TRANSFER.itemsize == 12
TRANSFER: Final = packer(HA_TRANSFER)
TRANSFER_BYTES: Final = 12
