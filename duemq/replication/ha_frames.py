"""Frames of Apache's HA protocol (DefaultHA).

replica -> master   HA_REPORT     end of the replica's log: acknowledgement, and request for more
master -> replica   HA_TRANSFER   log offset and size, then `size` bytes of log; 0: a heartbeat
"""

from __future__ import annotations

from duemq.replication.layout import TRANSFER, TRANSFER_BYTES
from duemq.replication.log_stream import TRANSFER_BYTES_MAX, LogStream
from message_store.errors import ReplicationFault


class TransferStream(LogStream):
    """Log stream of a DefaultHA master: parses the headers of its transfers."""

    def __init__(self) -> None:
        super().__init__()
        self.expect(TRANSFER_BYTES, self._read_transfer)

    def _read_transfer(self, head: bytes) -> None:
        offset, size = TRANSFER.unpack(head)
        if not 0 <= size <= TRANSFER_BYTES_MAX or offset < 0:
            raise ReplicationFault(
                f"the master sent a transfer of {size} bytes at log offset {offset}: this is not "
                f"Apache's HA protocol, or haMasterAddress names another port"
            )
        self.begin(offset, size)
