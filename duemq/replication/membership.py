"""Membership: what a broker in controller mode needs of its group, in one role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from duemq.replication.autoswitch_frames import Handshake
from duemq.replication.controller.service import GroupService
from duemq.replication.epoch_file import EpochFile
from duemq.replication.role import Role
from message_store.errors import StoreError
from message_store.store import MessageStore

NO_LEASE = (
    "the controller has not confirmed lately that this broker is the master (see duemq replicas); "
    "it continues when the controller answers, or another member takes over"
)


@dataclass(frozen=True, slots=True)
class Membership:
    """The membership of one broker.

    Attributes:
        epochs: Epochs of the log of this store.
        service: What talks to the controller; it outlives the broker.
        truncate: Called with a log offset when the log of this replica has to end there: closes
            the broker, truncates, and opens it again.
        is_learner: Whether the broker never joins the sync state set.
        catch_up_ms_max: haMaxTimeSlaveNotCatchup.
    """

    role: Role
    epochs: EpochFile
    service: GroupService
    truncate: Callable[[int], None]
    is_learner: bool
    catch_up_ms_max: int

    def handshake(self, *, from_last_file: bool) -> Handshake:
        """Return what the broker says about itself as a replica."""
        return Handshake(self.role.own_id, from_last_file, self.is_learner)

    @property
    def epoch_start(self) -> int:
        """Log offset at which the newest epoch of the log begins."""
        last = self.epochs.epochs.last
        return last.start_offset if last is not None else 0

    def begin(self, store: MessageStore) -> None:
        """Make epochs and store ready for the role, before anything is appended.

        Epochs of log bytes that were lost or have expired are removed. The master's own epoch
        begins at the end of the log. Without a valid lease the store refuses every message.

        Raises:
            StoreError: The log has a newer epoch than the controller.
            OSError: The disk refused the file of epochs.
        """
        known = self.epochs.epochs.before(store.max_offset + 1).since(store.min_offset)
        if not self.role.is_replica:
            try:
                known = known.begun(self.role.epoch, store.max_offset, store.min_offset)
            except ValueError as error:
                raise StoreError(
                    f"{self.epochs.path}: {error}: the controller's data was lost or is another "
                    f"group's. Restore it, or remove this file to begin with the controller's "
                    f"epochs"
                ) from error
            store.fence = self._refusal
        self.epochs.replace(known)

    def _refusal(self) -> str:
        return "" if self.service.holds(self.role.epoch) else NO_LEASE
