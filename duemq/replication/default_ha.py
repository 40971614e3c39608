"""Apache's HA protocol (DefaultHA) on a replica: frames, and the log offset at which it begins.

replica -> master   HA_REPORT     end of the replica's log: acknowledgement, and request for more
master -> replica   HA_TRANSFER   log offset and size, then `size` bytes of log; 0: a heartbeat

When a replica reports 0, Apache's master sends only the last file of its log. An empty replica
therefore reports the first offset of the master's log. If that offset is 0, it reports 1 and adds
the byte at offset 0 itself: the highest byte of the first record's size, which is 0 because every
record is smaller than 16 MiB.

Source: DefaultHAClient
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from duemq.replication.ha_client import OpenSession
from duemq.replication.layout import REPORT, TRANSFER, TRANSFER_BYTES
from duemq.replication.log_stream import TRANSFER_BYTES_MAX, LogStream
from duemq.replication.own_log import OwnRecord, record_before
from duemq_common.errors import ReplicationFault
from message_store.store import MessageStore

FIRST_BYTE: Final = b"\0"


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


class DefaultSession:
    """One connection to a DefaultHA master.

    Args:
        start: Log offset of the first report.
        stream: Parser of the master's transfers.
    """

    def __init__(self, start: int, stream: TransferStream) -> None:
        self.stream = stream
        self._start = start

    def first_frame(self) -> bytes:
        """Return the first report, which requests the log from its offset on."""
        return REPORT.pack(self._start)

    def on_received(self) -> bytes:
        """Return nothing: a DefaultHA replica sends only reports."""
        return b""

    def report(self, log_end: int) -> bytes:
        """Return a report; empty for 0, which would request the master's last file."""
        return REPORT.pack(log_end) if log_end else b""


def default_sessions(
    store: MessageStore, first_offset: Callable[[], Awaitable[int]], *, from_last_file: bool
) -> OpenSession:
    """Return the function that opens a session of DefaultHA.

    Args:
        first_offset: Requests the first offset of the master's log from the master.
        from_last_file: Whether an empty replica begins with the master's last log file.
    """

    async def open_session() -> DefaultSession:
        stream = TransferStream()
        end = store.max_offset
        if end:
            last = record_before(store, end)
            if last is None or last.end < end:  # retention at the master may have removed this file
                last = OwnRecord(end, b"")
            stream.place(last.start, repeated=last.data, letter_at=last.letter_at)
            return DefaultSession(last.start, stream)
        if from_last_file:
            return DefaultSession(0, stream)
        first = await first_offset()
        stream.place(first, prefix=b"" if first else FIRST_BYTE)
        return DefaultSession(first or len(FIRST_BYTE), stream)

    return open_session
