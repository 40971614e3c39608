"""Membership of a broker in controller mode: its role, its epochs, and the group service."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from duemq.replication.autoswitch_frames import Handshake
from duemq.replication.epoch_file import EpochFile
from duemq.replication.role import ReplicationRole
from duemq_common.errors import StoreError
from message_store.store import MessageStore

if TYPE_CHECKING:
    from duemq.replication.controller.service import GroupService

log = logging.getLogger(__name__)
NO_LEASE = (
    "the controller has not confirmed lately that this broker is the master (see duemq replicas); "
    "it continues when the controller responds, or another member becomes master"
)


class Membership(Struct):
    """The membership of one broker.

    Attributes:
        role: Role of the broker; until it closes, only the epoch changes.
        epochs: Epochs of the log of this store.
        service: Connection to the controller; it stays open while the broker restarts.
        truncate: Called with the log offset to which the log of this replica has to be truncated;
            closes the broker, truncates the log, and opens the broker again.
        is_learner: Whether the broker never joins the sync state set.
        catch_up_ms_max: Maximum ms for which a replica may lag (haMaxTimeSlaveNotCatchup).
    """

    role: ReplicationRole
    epochs: EpochFile
    service: GroupService
    truncate: Callable[[int], None]
    is_learner: bool
    catch_up_ms_max: int

    def handshake(self, *, from_last_file: bool) -> Handshake:
        """Return the handshake that this broker sends as a replica.

        Args:
            from_last_file: Whether an empty replica begins with the master's last log file.
        """
        return Handshake(self.role.own_id, from_last_file, self.is_learner)

    @property
    def epoch_start(self) -> int:
        """Log offset at which the newest epoch of the log begins."""
        last = self.epochs.epochs.last
        return last.start_offset if last is not None else 0

    def begin(self, store: MessageStore) -> None:
        """Prepare epochs and store for the role, before anything is appended.

        Removes epochs of log bytes that were lost or have expired. On a master, begins a new epoch
        at the end of the log, and makes the store refuse messages while the lease is not valid.

        Raises:
            StoreError: The log has a newer epoch than the controller.
            OSError: The epoch file cannot be written.
        """
        before = self.epochs.epochs
        epochs = before.before(store.max_offset + 1)
        if epochs != before:
            log.warning(
                "%s: %d epochs that begin after the end of the log are removed",
                self.epochs.path,
                len(before.entries) - len(epochs.entries),
            )
        epochs = epochs.since(store.min_offset)
        if not self.role.is_replica:
            try:
                epochs = epochs.begun(self.role.epoch, store.max_offset, store.min_offset)
            except ValueError as error:
                raise StoreError(
                    f"{self.epochs.path}: {error}: the controller has lost its data, or has the "
                    f"data of another group. Restore it, or remove this file to begin with the "
                    f"controller's epochs"
                ) from error
            store.fence = self._refusal
        self.epochs.replace(epochs)

    def _refusal(self) -> str:
        return "" if self.service.holds(self.role.epoch) else NO_LEASE
