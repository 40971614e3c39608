"""Frames of Apache's HA protocol in controller mode (AutoSwitchHA), both sides, without I/O.

replica -> master   AS_HANDSHAKE          id of the replica, and whether it is a learner
master -> replica   AS_MASTER_HANDSHAKE   end of the master's log, and its epochs
                    (the replica finds the point up to which both logs are equal)
replica -> master   AS_REPORT             end of the replica's log; the first one requests the log
master -> replica   AS_TRANSFER           log of one epoch, and the confirm offset; a heartbeat
                                          has no log

Apache's master already names the next epoch in the header of an epoch's last transfer. While its
log is empty, Apache's master sends the first epoch in a heartbeat with offset -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from msgspec import Struct

from duemq.replication.epoch_file import (
    ENTRIES_KEPT,
    ENTRIES_MAX,
    NO_EPOCH,
    EpochEntry,
    Epochs,
)
from duemq.replication.layout import (
    EPOCH,
    EPOCH_REPORT,
    EPOCH_TRANSFER,
    HANDSHAKE,
    HANDSHAKE_REQUEST,
    MASTER_HANDSHAKE,
    TRANSFERS,
)
from duemq.replication.log_stream import DIVERGED, TRANSFER_BYTES_MAX, LogStream
from duemq.replication.own_log import OwnRecord
from duemq_common.broker_ids import BROKER_ID_MAX
from duemq_common.errors import ReplicationFault

STATE_BYTES: Final = 4
NOT_THIS_PROTOCOL: Final = "this is not Apache's HA protocol of controller mode"


class Handshake(NamedTuple):
    """First frame of a replica.

    Attributes:
        broker_id: Id of the replica at the controller.
        from_last_file: Whether an empty replica requests only the master's last log file.
        is_async_learner: Whether the replica never joins the sync state set.
    """

    broker_id: int
    from_last_file: bool = False
    is_async_learner: bool = False

    def encode(self) -> bytes:
        """Return the frame."""
        flags = int(self.from_last_file), int(self.is_async_learner)
        return HANDSHAKE_REQUEST.pack(HANDSHAKE, *flags, self.broker_id)


class LogEndReport(NamedTuple):
    """Frame of a replica after its handshake: the end of its log."""

    log_end: int

    def encode(self) -> bytes:
        """Return the frame."""
        return EPOCH_REPORT.pack(TRANSFERS, self.log_end)


class MasterHandshake(NamedTuple):
    """First frame of a master.

    Attributes:
        log_end: End of the master's log.
        epochs: Epochs of the master's log.
    """

    log_end: int
    epochs: Epochs

    def encode(self) -> bytes:
        """Return the frame, with at most the newest `ENTRIES_KEPT` epochs, Apache's limit."""
        body = b"".join(EPOCH.pack(*entry) for entry in self.epochs.entries[-ENTRIES_KEPT:])
        head = HANDSHAKE, len(body), self.log_end, self.epochs.last_epoch
        return MASTER_HANDSHAKE.pack(*head) + body


class LogTransfer(NamedTuple):
    """Header of each frame that a master sends after its handshake.

    Attributes:
        offset: Log offset of the bytes after the header.
        size: Number of bytes of log after the header; 0: a heartbeat.
        entry: Epoch of these bytes, or the next epoch.
        confirm_offset: Log offset up to which every member of the sync state set has the log.
    """

    offset: int
    size: int
    entry: EpochEntry
    confirm_offset: int

    def encode(self) -> bytes:
        """Return the header."""
        return EPOCH_TRANSFER.pack(
            TRANSFERS, self.size, self.offset, *self.entry, self.confirm_offset
        )


class ReplicaFrames:
    """Parser of the frames of a replica."""

    def __init__(self) -> None:
        self._data = b""

    def receive(self, data: bytes) -> list[Handshake | LogEndReport]:
        """Return the frames that these bytes complete.

        Raises:
            ReplicationFault: A frame is invalid.
        """
        data = self._data + data
        frames: list[Handshake | LogEndReport] = []
        position = 0
        while position + STATE_BYTES <= len(data):
            size = _frame_bytes(data[position : position + STATE_BYTES])
            if position + size > len(data):
                break
            frame = data[position : position + size]
            is_report = size == EPOCH_REPORT.size
            frames.append(_read_report(frame) if is_report else _read_handshake(frame))
            position += size
        self._data = data[position:]
        return frames


def _frame_bytes(state: bytes) -> int:
    """Return the size in bytes of a replica's frame, by its state."""
    number = int.from_bytes(state, signed=True)
    if number == HANDSHAKE:
        return HANDSHAKE_REQUEST.size
    if number == TRANSFERS:
        return EPOCH_REPORT.size
    raise ReplicationFault(
        f"the replica sent a frame of state {number}: {NOT_THIS_PROTOCOL}. The replica is not in "
        f"controller mode, or another service connects to haListenPort"
    )


def _read_handshake(frame: bytes) -> Handshake:
    _, from_last_file, is_async_learner, broker_id = HANDSHAKE_REQUEST.unpack(frame)
    if not 0 < broker_id <= BROKER_ID_MAX:
        raise ReplicationFault(
            f"the replica has the id {broker_id}; ids of a controller are 1 to {BROKER_ID_MAX}"
        )
    return Handshake(broker_id, from_last_file == 1, is_async_learner == 1)


def _read_report(frame: bytes) -> LogEndReport:
    _, log_end = EPOCH_REPORT.unpack(frame)
    if log_end < 0:
        raise ReplicationFault(f"the replica reports the negative log offset {log_end}")
    return LogEndReport(log_end)


# -- the replica's side ---------------------------------------------------------------------------


class TruncationNeeded(ReplicationFault):
    """This log has unconfirmed bytes after `offset` that the master's log does not have.

    Attributes:
        offset: Log offset to which this log has to be truncated.
    """

    def __init__(self, offset: int, log_end: int) -> None:
        self.offset = offset
        super().__init__(
            f"this log has to be truncated to offset {offset}: its bytes from there to its end at "
            f"{log_end} are not in the master's log"
        )


class OwnLog(Struct, frozen=True):
    """The log of a replica when its connection begins.

    Attributes:
        end: End of the log; 0: it is empty.
        epochs: Epochs of the log.
        record_before: Returns the last record that ends at or before a log offset; None: none, or
            unreadable.
        master_epoch: The master's epoch according to the controller; `NO_EPOCH`: unknown.
        begin: First offset of the log.
        is_unconfirmed: Whether no message of the log was ever confirmed.
    """

    end: int
    epochs: Epochs
    record_before: Callable[[int], OwnRecord | None]
    master_epoch: int = NO_EPOCH
    begin: int = 0
    is_unconfirmed: bool = False


class AutoSwitchStream(LogStream):
    """Log stream of an AutoSwitchHA master; decides at which log offset the transfers begin.

    Epoch numbers are small, so a master of another group can have the same epochs. The stream
    therefore requests the last record that both logs should have, and compares the master's copy
    with the replica's, before the log is continued or truncated.

    Attributes:
        response: The master's first frame; None: not received yet.
        epochs: Epochs of this log and of `pending`. Write them to the epoch file once
            `is_compared` is true, and before `pending` is appended.
        confirm_offset: Newest confirm offset of the master; may be after the end of this log.
    """

    def __init__(self, own: OwnLog) -> None:
        super().__init__()
        self._own = own
        self._to_send = b""
        self._log_end = 0
        self._truncate_to: int | None = None
        self._entry: EpochEntry | None = None  # epoch of the last transfer
        self.response: MasterHandshake | None = None
        self.epochs = own.epochs
        self.confirm_offset = 0
        self.expect(MASTER_HANDSHAKE.size, self._read_response)

    def data_to_send(self) -> bytes:
        """Return the first report, once, after the master's response; else nothing."""
        data, self._to_send = self._to_send, b""
        return data

    # -- handshake ------------------------------------------------------------------------------

    def _read_response(self, head: bytes) -> None:
        state, size, self._log_end, _ = MASTER_HANDSHAKE.unpack(head)
        _check_state(state, HANDSHAKE)
        if size % EPOCH.size or not 0 <= size <= ENTRIES_MAX * EPOCH.size or self._log_end < 0:
            raise ReplicationFault(
                f"the master sent {size} bytes of epochs and the log end {self._log_end}: "
                f"{NOT_THIS_PROTOCOL}"
            )
        if not size:
            raise ReplicationFault(
                "the master has no epochs: it was not elected, or is not in controller mode"
            )
        self.expect(size, self._read_epochs)

    def _read_epochs(self, body: bytes) -> None:
        try:
            epochs = Epochs.of(EPOCH.iter_unpack(body))
        except ValueError as error:
            raise ReplicationFault(f"the master's epochs are invalid: {error}") from error
        self.response = MasterHandshake(self._log_end, epochs)
        self.expect(EPOCH_TRANSFER.size, self._read_transfer)
        self._to_send = LogEndReport(self._begin_log(self.response)).encode()
        self.master_offset, self.is_end_known = max(self.master_offset, self._log_end), True

    def _begin_log(self, master: MasterHandshake) -> int:
        """Compare the epochs of both logs; return the log offset to request.

        Raises:
            ReplicationFault: The master is not the newest one, or the logs have diverged.
            TruncationNeeded: This log has to be truncated.
        """
        own = self._own
        newest = max(master.epochs.last_epoch, own.master_epoch)
        if newest < own.epochs.last_epoch:
            raise ReplicationFault(
                f"the master has epoch {newest}, this log has epoch {own.epochs.last_epoch}: the "
                f"broker at this address is a former master, and a newer one was elected"
            )
        if not own.end:
            self.epochs = _equal_epochs(own, master)
            return 0
        if not own.epochs.entries:
            return self._continue_without_epochs(own, master)
        point = own.epochs.consistent_point(own.end, master.epochs, master.log_end)
        if point is None:
            if own.is_unconfirmed and not own.begin and newest > own.epochs.last_epoch:
                # This broker wrote its log as a master before any other member had a log.
                raise TruncationNeeded(0, own.end)
            raise ReplicationFault(
                f"this log and the master's have no epoch in common (here {_text(own.epochs)}; "
                f"there {_text(master.epochs)}): {DIVERGED}"
            )
        if point < own.begin:
            raise ReplicationFault(
                f"this log begins at {own.begin}, and differs from the master's from {point} on: "
                f"{DIVERGED}"
            )
        if point < own.end:
            return self._truncate(own, master, point)
        self.epochs = _equal_epochs(own, master)
        last = own.record_before(own.end)
        if last is None or last.end < own.end:  # retention at the master may have removed this file
            last = OwnRecord(own.end, b"")
        return self._request_record(last)

    def _continue_without_epochs(self, own: OwnLog, master: MasterHandshake) -> int:
        """Continue a log that was written without epochs; return the log offset to request.

        Raises:
            ReplicationFault: This log has no last record to compare with the master's log.
        """
        last = own.record_before(own.end)
        if last is None or last.end < own.end or master.log_end < own.end:
            raise ReplicationFault(
                f"this log ends at {own.end} and has no epochs to compare, the master's log ends "
                f"at {master.log_end}: {DIVERGED}"
            )
        self.epochs = _equal_epochs(own, master)
        return self._request_record(last)

    def _request_record(self, last: OwnRecord) -> int:
        """Expect the master's copy of a record, to compare; return the log offset to request."""
        self.place(last.start, repeated=last.data, letter_at=last.letter_at)
        return last.start

    def _truncate(self, own: OwnLog, master: MasterHandshake, point: int) -> int:
        """Prepare the truncation of this log to `point`; return the log offset to request.

        The last record before `point` is compared before `TruncationNeeded` is raised.

        Raises:
            ReplicationFault: The logs have nothing in common, and the master has no newer epoch.
            TruncationNeeded: There is no record before `point` to compare.
        """
        last = own.record_before(point)
        if last is not None:
            self._truncate_to, self.epochs = point, own.epochs.before(point)
            return self._request_record(last)
        if master.epochs.last_epoch <= own.epochs.last_epoch:
            raise ReplicationFault(
                f"the master's log has no record of this log, and no newer epoch than "
                f"{own.epochs.last_epoch}: {DIVERGED}"
            )
        raise TruncationNeeded(point, own.end)

    def compared(self) -> None:
        """Handle the end of the comparison of the last common record.

        Raises:
            TruncationNeeded: This log has bytes after it that the master's log does not have.
        """
        if self._truncate_to is not None:
            raise TruncationNeeded(self._truncate_to, self._own.end)

    # -- transfers ------------------------------------------------------------------------------

    def _read_transfer(self, head: bytes) -> None:
        state, size, offset, epoch, start, confirm = EPOCH_TRANSFER.unpack(head)
        _check_state(state, TRANSFERS)
        if not 0 <= size <= TRANSFER_BYTES_MAX or (offset < 0 and size) or epoch < 0 or start < 0:
            raise ReplicationFault(
                f"the master sent a transfer of {size} bytes at log offset {offset} in epoch "
                f"{epoch} at {start}: {NOT_THIS_PROTOCOL}"
            )
        entry = EpochEntry(epoch, start)
        if entry != self._entry:  # Apache's master begins an epoch with a transfer without log
            self._entry, self.heartbeats = entry, 0
        if size and offset and not self.is_placed:
            self.epochs = Epochs()  # the log does not begin at 0: drop the epochs known for 0
        self.begin(offset, size)
        self._enter(entry, offset, size)
        self.confirm_offset = max(self.confirm_offset, confirm)

    def _enter(self, entry: EpochEntry, offset: int, size: int) -> None:
        """Add the epoch of a transfer if it is new, and missing epochs before it.

        Raises:
            ReplicationFault: The epoch contradicts the known epochs.
        """
        current = self.epochs.covering(offset)
        is_new = entry.epoch > self.epochs.last_epoch
        if current is None or (is_new and entry.start_offset >= offset):
            self._add_epochs(entry, offset)
        elif size and (entry not in self.epochs.entries or entry.epoch < current.epoch):
            raise ReplicationFault(
                f"the master sent log offset {offset} in epoch {entry.epoch} at "
                f"{entry.start_offset}, but it belongs to epoch {current.epoch} at "
                f"{current.start_offset}: {DIVERGED}"
            )

    def _add_epochs(self, entry: EpochEntry, offset: int) -> None:
        assert self.response is not None
        missing = self.response.epochs.since(offset).entries
        before = [each for each in missing if self.epochs.last_epoch < each.epoch < entry.epoch]
        try:
            for each in (*before, entry):
                self.epochs = self.epochs.appended(*each)
        except ValueError as error:
            raise ReplicationFault(f"the master's epochs are invalid: {error}") from error


def _equal_epochs(own: OwnLog, master: MasterHandshake) -> Epochs:
    """Return the epochs of a log that is equal to the master's up to its end.

    The result has the master's epochs, including an epoch that begins at this end: in an election
    or a comparison, the replica then has the newest epoch. It also has the epochs of this log that
    are older than the master's first epoch, because the master may have removed them.
    """
    first = master.epochs.entries[0].epoch
    older = [each for each in own.epochs.before(own.end).entries if each.epoch < first]
    return Epochs((*older, *master.epochs.before(own.end + 1).entries))


def _check_state(state: int, expected: int) -> None:
    if state != expected:
        raise ReplicationFault(
            f"the master sent a frame of state {state} instead of {expected}: {NOT_THIS_PROTOCOL}. "
            f"The master is not in controller mode, or haMasterAddress names another port"
        )


def _text(epochs: Epochs) -> str:
    """Return the three newest epochs as text, for messages."""
    return ", ".join(f"{entry.epoch} at {entry.start_offset}" for entry in epochs.entries[-3:])
