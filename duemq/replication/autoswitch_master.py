"""AutoSwitchHA on a master: handshake, epochs and confirm offset of one connection.

Source: AutoSwitchHAConnection
"""

from __future__ import annotations

from collections.abc import Callable

from duemq.replication.autoswitch_frames import (
    Handshake,
    LogEndReport,
    LogTransfer,
    MasterHandshake,
    ReplicaFrames,
)
from duemq.replication.epoch_file import EpochEntry, Epochs
from duemq_common.errors import ReplicationFault

NO_LOG = EpochEntry(0, 0)


class AutoSwitchMaster:
    """The framing of one connection (a `MasterProtocol`).

    Args:
        own_id: Id of the master at the controller.
        epochs: Returns the epochs of the master's log.
        confirm_offset: Returns the log offset that every member of the sync state set has reached.
        file_bytes: Size of a log file, in bytes.

    Attributes:
        start: Requested log offset; 0: the first offset of the log; None: no request yet.
        acknowledged: End of the replica's log in its last report.
        replica_id: Id of the replica at the controller; None before its handshake.
        is_learner: Whether the replica never joins the sync state set.
    """

    def __init__(
        self,
        own_id: int,
        epochs: Callable[[], Epochs],
        confirm_offset: Callable[[], int],
        *,
        file_bytes: int,
    ) -> None:
        self._own_id, self._epochs, self._confirm_offset = own_id, epochs, confirm_offset
        self._file_bytes = file_bytes
        self._frames = ReplicaFrames()
        self._responses, self._confirmed = b"", 0
        self._handshake: Handshake | None = None
        self.start: int | None = None
        self.acknowledged = 0
        self.replica_id: int | None = None
        self.is_learner = False

    def receive(self, data: bytes, log_end: int) -> None:
        """Process a handshake or reports; see `MasterProtocol`."""
        for frame in self._frames.receive(data):
            if isinstance(frame, Handshake):
                self._receive_handshake(frame, log_end)
            else:
                self._report(frame, log_end)

    def _receive_handshake(self, handshake: Handshake, log_end: int) -> None:
        if self._handshake is not None:
            self._check_repeated(handshake)
            return
        if handshake.broker_id == self._own_id:
            raise ReplicationFault(
                f"the replica has the id {self._own_id}, which is this master's id: two stores "
                f"share one identity. Stop the replica and remove its brokerIdentity file"
            )
        self._handshake, self.replica_id = handshake, handshake.broker_id
        self.is_learner = handshake.is_async_learner
        self._responses += MasterHandshake(log_end, self._epochs()).encode()

    def _check_repeated(self, handshake: Handshake) -> None:
        """Accept an equal handshake: Apache's replica repeats it after half of the response.

        Raises:
            ReplicationFault: The handshake differs, or the replica has already reported.
        """
        if handshake != self._handshake or self.start is not None:
            raise ReplicationFault(
                f"replica {self.replica_id} sent a second handshake, with id {handshake.broker_id}"
            )

    def _report(self, report: LogEndReport, log_end: int) -> None:
        if self._handshake is None:
            raise ReplicationFault("the replica sent a report before its handshake")
        if report.log_end > log_end:
            raise ReplicationFault(
                f"acknowledgement beyond the log: the log of replica {self.replica_id} ends at "
                f"{report.log_end}, the master's at {log_end}"
            )
        if report.log_end < self.acknowledged:
            raise ReplicationFault(
                f"replica {self.replica_id} reports log offset {report.log_end} after "
                f"{self.acknowledged}"
            )
        if self.start is None:
            self.start = report.log_end
            if not self.start and self._handshake.from_last_file:
                self.start = log_end - log_end % self._file_bytes
        self.acknowledged = report.log_end

    def data_to_send(self) -> bytes:
        """Return the response to the handshake, once."""
        data, self._responses = self._responses, b""
        return data

    def transfer_end(self, offset: int, end: int) -> int:
        """Return `end`, or the end of the epoch of the byte at `offset` if that is lower."""
        return min(end, self._epochs().end_after(offset))

    def transfer_header(self, offset: int, size: int) -> bytes:
        """Return the header of a transfer of `size` bytes of log; 0: a heartbeat."""
        entry = self._epochs().covering(offset) or NO_LOG
        self._confirmed = self._confirm_offset()
        return LogTransfer(offset, size, entry, self._confirmed).encode()

    def has_new_confirm_offset(self) -> bool:
        """Return whether the confirm offset has grown since the last header.

        Consumers of the replica can read up to the confirm offset.
        """
        return self._confirm_offset() > self._confirmed

    def awaits_confirmation(self, offset: int) -> bool:
        """Return whether the confirm offset in the last header is before `offset`."""
        return self._confirmed < offset
