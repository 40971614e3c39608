"""AutoSwitchHA at a replica: handshake, epochs, confirm offset.

    handshake --> master's epochs --> point up to which both logs are equal
                                        |-- the end of this log: transfers, each with its epoch
                                        `-- before it: the owner truncates this log

A new epoch is in the epoch file before the first byte of its log is written.

Source: AutoSwitchHAClient
"""

from __future__ import annotations

from collections.abc import Callable

from duemq.replication.autoswitch_frames import AutoSwitchStream, Handshake, OwnLog, Report
from duemq.replication.epoch_file import NO_EPOCH, EpochFile
from duemq.replication.ha_client import Open
from duemq.replication.own_log import record_before
from message_store.store import MessageStore


class AutoSwitchSession:
    """One connection to a master in controller mode.

    Args:
        on_confirmed: Called with the confirm offset after every frame.
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

    def greeting(self) -> bytes:
        """Return the handshake."""
        return self._handshake.encode()

    def on_received(self) -> bytes:
        """Write new epochs; return the first report once the master has answered."""
        if self.stream.answer is not None and self.stream.is_compared:
            self._epochs.replace(self.stream.epochs)
        self._on_confirmed(self.stream.confirm_offset)
        return self.stream.data_to_send()

    def report(self, log_end: int) -> bytes:
        """Return a report; none before the master has answered."""
        return Report(log_end).encode() if self.stream.answer is not None else b""


def autoswitch_sessions(
    store: MessageStore,
    epochs: EpochFile,
    handshake: Handshake,
    *,
    on_confirmed: Callable[[int], None] = lambda offset: None,
    master_epoch: Callable[[], int] = lambda: NO_EPOCH,
) -> Open:
    """Return what begins a connection in AutoSwitchHA.

    Args:
        epochs: The epoch file of this store.
        handshake: Identity of this replica.
        on_confirmed: Called with the confirm offset of the master after every frame; it may be
            after the end of this log.
        master_epoch: Returns the epoch that a controller named with the master's address.
    """

    async def begin() -> AutoSwitchSession:
        own = OwnLog(
            begin=store.min_offset,
            end=store.max_offset,
            epochs=epochs.epochs,
            record_before=lambda offset: record_before(store, offset),
            master_epoch=master_epoch(),
            is_unconfirmed=store.is_unconfirmed,
        )
        return AutoSwitchSession(AutoSwitchStream(own), handshake, epochs, on_confirmed)

    return begin
