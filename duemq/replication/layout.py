"""Byte layouts of Apache's HA protocols, big-endian. DefaultHA is the same in 4.9 and 5.x.

Source: DefaultHAConnection, DefaultHAClient
"""

from __future__ import annotations

from typing import Final

import numpy as np

from message_store.layout import packer

# Replica to master: the end of its log; acknowledges the log before it, requests the log after it.
HA_REPORT = np.dtype([("log_end", ">i8")])
assert HA_REPORT.itemsize == 8
REPORT: Final = packer(HA_REPORT)

# Master to replica, before `size` bytes of its log; 0: a heartbeat.
HA_TRANSFER = np.dtype([("offset", ">i8"), ("size", ">i4")])
assert HA_TRANSFER.itemsize == 12
TRANSFER: Final = packer(HA_TRANSFER)
TRANSFER_BYTES: Final = 12

# AutoSwitchHA (controller mode of 5.x): every frame begins with a state of HAConnectionState.
# Source: AutoSwitchHAClient, AutoSwitchHAConnection
HANDSHAKE: Final = 1
TRANSFERS: Final = 2

# Replica to master: its first frame.
AS_HANDSHAKE = np.dtype(
    [("state", ">i4"), ("from_last_file", ">i2"), ("is_async_learner", ">i2"), ("broker_id", ">i8")]
)
assert AS_HANDSHAKE.itemsize == 16
HANDSHAKE_REQUEST: Final = packer(AS_HANDSHAKE)

# Master to replica: the response, before `body_size` bytes of epochs.
AS_MASTER_HANDSHAKE = np.dtype(
    [("state", ">i4"), ("body_size", ">i4"), ("log_end", ">i8"), ("last_epoch", ">i4")]
)
assert AS_MASTER_HANDSHAKE.itemsize == 20
MASTER_HANDSHAKE: Final = packer(AS_MASTER_HANDSHAKE)
AS_EPOCH = np.dtype([("epoch", ">i4"), ("start_offset", ">i8")])
assert AS_EPOCH.itemsize == 12
EPOCH: Final = packer(AS_EPOCH)

# Replica to master, after the handshake: the end of its log. The first report requests the log.
AS_REPORT = np.dtype([("state", ">i4"), ("log_end", ">i8")])
assert AS_REPORT.itemsize == 12
EPOCH_REPORT: Final = packer(AS_REPORT)

# Master to replica, after the handshake, before `body_size` bytes of its log; 0: a heartbeat.
AS_TRANSFER = np.dtype(
    [
        ("state", ">i4"),
        ("body_size", ">i4"),
        ("offset", ">i8"),
        ("epoch", ">i4"),
        ("epoch_start", ">i8"),
        ("confirm_offset", ">i8"),
    ]
)
assert AS_TRANSFER.itemsize == 36
EPOCH_TRANSFER: Final = packer(AS_TRANSFER)
