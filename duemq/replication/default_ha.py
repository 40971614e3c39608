"""DefaultHA at a replica: what it reports, and where its log begins.

To a report of 0, Apache's master answers with the last file of its log only. An empty replica
therefore reports the first offset of the master's log, and 1 if that is 0: the byte before it, the
first one of a record's size, is 0, as no record has 16 MiB.

Source: DefaultHAClient
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from duemq.replication.ha_client import Open
from duemq.replication.ha_frames import TransferStream
from duemq.replication.layout import REPORT
from duemq.replication.own_log import OwnRecord, record_before
from message_store.store import MessageStore

FIRST_BYTE: Final = b"\0"


class DefaultSession:
    """One connection to a DefaultHA master.

    Args:
        start: The first report.
    """

    def __init__(self, start: int, stream: TransferStream) -> None:
        self.stream = stream
        self._start = start

    def greeting(self) -> bytes:
        """Return the first report, which is a request for the log from there on."""
        return REPORT.pack(self._start)

    def on_received(self) -> bytes:
        """Return nothing: only reports are sent."""
        return b""

    def report(self, log_end: int) -> bytes:
        """Return a report; none of 0, a request for the last file."""
        return REPORT.pack(log_end) if log_end else b""


def default_sessions(
    store: MessageStore, first_offset: Callable[[], Awaitable[int]], *, from_last_file: bool
) -> Open:
    """Return what begins a connection in DefaultHA.

    Args:
        first_offset: Asks the master for the first offset of its log.
        from_last_file: An empty replica begins with the master's last file.
    """

    async def begin() -> DefaultSession:
        stream = TransferStream()
        end = store.max_offset
        if end:
            last = record_before(store, end)
            if last is None or last.end < end:  # it may have expired at the master
                last = OwnRecord(end, b"")
            stream.place(last.start, repeated=last.data, letter_at=last.letter_at)
            return DefaultSession(last.start, stream)
        if from_last_file:
            return DefaultSession(0, stream)
        first = await first_offset()
        stream.place(first, known=b"" if first else FIRST_BYTE)
        return DefaultSession(first or len(FIRST_BYTE), stream)

    return begin
