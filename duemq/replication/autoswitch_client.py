"""AutoSwitchHA on a replica: handshake, epochs, confirm offset.

    handshake --> master's epochs --> point up to which both logs are equal
                                        |-- it is the end of this log: transfers begin
                                        `-- it is before the end: this log has to be truncated

A new epoch is written to the epoch file before the first byte of its log is appended.

Source: AutoSwitchHAClient
"""

from __future__ import annotations

from collections.abc import Callable

from duemq.replication.autoswitch_frames import AutoSwitchStream, Handshake, LogEndReport, OwnLog
from duemq.replication.epoch_file import NO_EPOCH, EpochFile
from duemq.replication.ha_client import OpenSession
from duemq.replication.own_log import record_before
from message_store.store import MessageStore


class AutoSwitchSession:
    """One connection to a master in controller mode.

    Args:
        stream: Parser of the master's frames.
        handshake: First frame of this replica.
        epochs: The epoch file of this store.
        on_confirmed: Called with the confirm offset after each receive, once the last record of
            this log was compared.
    """

    def __init__(
        self,
        stream: AutoSwitchStream,
        handshake: Handshake,
        epochs: EpochFile,
        on_confirmed: Callable[[int], None],
    ) -> None:
        self.stream = stream
        self._handshake, self._epochs, self._on_confirmed = handshake, epochs, on_confirmed

    def first_frame(self) -> bytes:
        """Return the handshake."""
        return self._handshake.encode()

    def on_received(self) -> bytes:
        """Write new epochs; return the first report after the master's response, else nothing.

        The master's confirm offset is for its log: before the comparison, this log may have other
        bytes before it, which the group never confirmed.

        Raises:
            OSError: The epoch file cannot be written.
        """
        if self.stream.response is not None and self.stream.is_compared:
            self._epochs.replace(self.stream.epochs)
            self._on_confirmed(self.stream.confirm_offset)
        return self.stream.data_to_send()

    def report(self, log_end: int) -> bytes:
        """Return a report; empty before the master's response to the handshake."""
        return LogEndReport(log_end).encode() if self.stream.response is not None else b""


def autoswitch_sessions(
    store: MessageStore,
    epochs: EpochFile,
    handshake: Handshake,
    *,
    on_confirmed: Callable[[int], None] = lambda offset: None,
    master_epoch: Callable[[], int] = lambda: NO_EPOCH,
) -> OpenSession:
    """Return the function that opens a session of AutoSwitchHA.

    Args:
        epochs: The epoch file of this store.
        handshake: First frame of this replica.
        on_confirmed: Called with the confirm offset of the master after each receive, once the last
            record of this log was compared; it may be after the end of this log.
        master_epoch: Returns the master's epoch according to the controller; `NO_EPOCH`: unknown.
    """

    async def open_session() -> AutoSwitchSession:
        own = OwnLog(
            begin=store.min_offset,
            end=store.max_offset,
            epochs=epochs.epochs,
            record_before=lambda offset: record_before(store, offset),
            master_epoch=master_epoch(),
            is_unconfirmed=store.is_unconfirmed,
        )
        return AutoSwitchSession(AutoSwitchStream(own), handshake, epochs, on_confirmed)

    return open_session
