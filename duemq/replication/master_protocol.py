"""Frames of a replica's connection as its master sees them, without I/O.

    bytes --receive--> start, acknowledged          data_to_send, transfer_header --> bytes

`MasterProtocol` is what the transfer loop (`replica_connection`) needs of a framing; `DefaultHa` is
the one of DefaultHA. A framing with a handshake leaves `start` None until the handshake is done.
"""

from __future__ import annotations

from typing import Final, Protocol

from duemq.replication.layout import REPORT, TRANSFER
from message_store.errors import ReplicationFault

FIRST_REPORT_MAX: Final = 1
"""Report of an empty DueMQ replica, which has the first byte of every log (see `ha_client`)."""


class MasterProtocol(Protocol):
    """One connection's frames.

    Attributes:
        start: Log offset that the replica asked for, 0: the first one; None: it has not asked.
        acknowledged: End of the replica's log as it reported last.
        replica_id: Its brokerId if the framing names it, else None.
        is_learner: Whether the replica never joins the sync state set.
    """

    @property
    def start(self) -> int | None: ...
    @property
    def acknowledged(self) -> int: ...
    @property
    def replica_id(self) -> int | None: ...
    @property
    def is_learner(self) -> bool: ...

    def receive(self, data: bytes, log_end: int) -> None:
        """Take bytes of the replica.

        Args:
            log_end: End of the master's log.
        Raises:
            ReplicationFault: The replica reports what cannot be.
        """
        ...

    def data_to_send(self) -> bytes:
        """Return answers to what was received, once."""
        ...

    def transfer_end(self, offset: int, end: int) -> int:
        """Return where a transfer of offset..end has to end, such as at the end of an epoch."""
        ...

    def transfer_header(self, offset: int, size: int) -> bytes:
        """Return the bytes before `size` bytes of log; 0: a heartbeat."""
        ...

    def has_news(self) -> bool:
        """Return whether a header would contain more than the last one."""
        ...

    def expects_news(self, offset: int) -> bool:
        """Return whether a header will contain more, for a replica with the log up to `offset`."""
        ...


class DefaultHa:
    """The framing of DefaultHA: reports of 8 bytes, transfers with a header of 12.

    Source: DefaultHAConnection
    """

    replica_id: int | None = None
    is_learner = False

    def __init__(self) -> None:
        self._part = b""
        self.start: int | None = None
        self.acknowledged = 0

    def receive(self, data: bytes, log_end: int) -> None:
        """Take reports; see `MasterProtocol`."""
        data = self._part + data
        whole = len(data) - len(data) % REPORT.size
        self._part = data[whole:]
        for (report,) in REPORT.iter_unpack(data[:whole]):
            self._report(report, log_end)

    def _report(self, report: int, log_end: int) -> None:
        if report < self.acknowledged:
            raise ReplicationFault(
                f"the replica reports log offset {report} after {self.acknowledged}: this is not "
                f"Apache's HA protocol, or another service connects to haListenPort"
            )
        if report > max(log_end, FIRST_REPORT_MAX):
            raise ReplicationFault(
                f"acknowledgement beyond the log: the replica's log ends at {report}, the master's "
                f"at {log_end}. It is a replica of another master, or this master lost its last "
                f"messages. Empty the replica's store to copy the log again, or make the replica "
                f"the master"
            )
        if self.start is None:
            self.start = report
        self.acknowledged = report

    def data_to_send(self) -> bytes:
        """Return nothing: DefaultHA has no handshake."""
        return b""

    def transfer_end(self, offset: int, end: int) -> int:
        """Return `end`: DefaultHA has no epochs."""
        return end

    def transfer_header(self, offset: int, size: int) -> bytes:
        """Return the header of a transfer."""
        return TRANSFER.pack(offset, size)

    def has_news(self) -> bool:
        """Return False: headers contain nothing about the log."""
        return False

    def expects_news(self, offset: int) -> bool:
        """Return False."""
        return False
