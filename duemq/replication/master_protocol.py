"""Master side of a replica's connection: parses and encodes its frames, without I/O.

    bytes --receive--> start, acknowledged          data_to_send, transfer_header --> bytes

`MasterProtocol` is the interface of a framing for the transfer loop (`replica_connection`);
`DefaultHa` is the framing of DefaultHA. A framing with a handshake keeps `start` None until the
first report after the handshake.
"""

from __future__ import annotations

from typing import Final, Protocol

from duemq.replication.layout import REPORT, TRANSFER
from duemq_common.errors import ReplicationFault

FIRST_REPORT_MAX: Final = 1
"""First report of an empty DueMQ replica, which adds the byte at offset 0 itself (`default_ha`)."""


class MasterProtocol(Protocol):
    """Framing of one connection.

    Attributes:
        start: Requested log offset; 0: the first offset of the log; None: no request yet.
        acknowledged: End of the replica's log in its last report.
        replica_id: Id of the replica at the controller; None: unknown, or not in the framing.
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
        """Process bytes received from the replica.

        Args:
            data: Received bytes, of any number of frames.
            log_end: End of the master's log.
        Raises:
            ReplicationFault: A frame is invalid.
        """
        ...

    def data_to_send(self) -> bytes:
        """Return the responses to received frames, each once."""
        ...

    def transfer_end(self, offset: int, end: int) -> int:
        """Return the end offset of the next transfer from `offset`: `end` or less."""
        ...

    def transfer_header(self, offset: int, size: int) -> bytes:
        """Return the bytes before `size` bytes of log; 0: a heartbeat."""
        ...

    def has_new_confirm_offset(self) -> bool:
        """Return whether the confirm offset has grown since the last header."""
        ...

    def awaits_confirmation(self, offset: int) -> bool:
        """Return whether the confirm offset in the last header is before `offset`."""
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
        """Process reports; see `MasterProtocol`."""
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
                f"at {log_end}. The replica copied another master's log, or this master lost its "
                f"last messages. Empty the replica's store to copy the log again, or make the "
                f"replica the master"
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
        """Return the header of a transfer of `size` bytes of log; 0: a heartbeat."""
        return TRANSFER.pack(offset, size)

    def has_new_confirm_offset(self) -> bool:
        """Return False: headers of DefaultHA have no confirm offset."""
        return False

    def awaits_confirmation(self, offset: int) -> bool:
        """Return False: headers of DefaultHA have no confirm offset."""
        return False
