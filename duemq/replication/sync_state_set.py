"""Sync state set of a master in controller mode: required members, and replicas in sync.

    reports --> update --> confirm offset: the log that all required members have
            `-> caught_up --> the controller's sync state set --> required members

A message is acknowledged, and consumers can read it, once every member of the sync state set has
it, regardless of inSyncReplicas. Each member that the controller may elect then has every
acknowledged message.

A replica joins the set when it has the log up to the confirm offset, and up to the offset at which
the master was elected: under the former master, a higher offset may have been confirmed than this
master knows.

A replica caught up at the time of its last report if that report names the end of the log. If it
names only the end that the log had at the report before, the replica caught up at the time of that
report. It stays in the set while this is at most haMaxTimeSlaveNotCatchup ago and its connection is
open.

Source: AutoSwitchHAService.maybeExpandInSyncStateSet, maybeShrinkSyncStateSet, computeConfirmOffset
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from duemq.configuration.ha_server_config import HaServerConfig
from duemq.replication.in_sync_replicas import refusal_of
from message_store.replication.acknowledgement import Replicated

if TYPE_CHECKING:
    from duemq.replication.replica_connection import ReplicaConnection


class _Progress(Struct):
    """Progress of a replica.

    Attributes:
        caught_up_ms: Steady time in ms at which it last caught up.
        report_ms: Time of the last report that moved `caught_up_ms`.
        log_end: End of the master's log at that time.
    """

    caught_up_ms: int
    report_ms: int
    log_end: int


class SyncStateSetReplicas:
    """Advances `Replicated` as the members of the sync state set report.

    Args:
        replicated: The confirm offset and its conditions.
        own_id: Id of the master.
        required: Returns the ids of the members that must have a message, this master included.
        replicas: Returns the open connections.
        log_end: Returns the end of the master's log.
        epoch_start: Returns the log offset at which the master was elected.
        steady_ms: Returns a monotonic time in ms.
        config: Returns the configuration: time limit of acknowledgements, minInSyncReplicas.
        catch_up_ms_max: Maximum ms since a member caught up (haMaxTimeSlaveNotCatchup).
        on_change: Called when `caught_up` has changed.
    """

    def __init__(
        self,
        replicated: Replicated,
        own_id: int,
        required: Callable[[], frozenset[int]],
        replicas: Callable[[], Iterable[ReplicaConnection]],
        log_end: Callable[[], int],
        epoch_start: Callable[[], int],
        steady_ms: Callable[[], int],
        *,
        config: Callable[[], HaServerConfig],
        catch_up_ms_max: int,
        on_change: Callable[[], None],
    ) -> None:
        self._replicated, self._own_id = replicated, own_id
        self._required, self._replicas = required, replicas
        self._log_end, self._epoch_start, self._steady_ms = log_end, epoch_start, steady_ms
        self._config = config
        self._catch_up_ms_max, self._on_change = catch_up_ms_max, on_change
        self._progress: dict[int, _Progress] = {}
        self._caught_up: frozenset[int] = frozenset()
        replicated.is_possible = True  # a lost member reconnects, or is removed from the set

    def is_in_sync(self, replica: ReplicaConnection) -> bool:
        """Return whether a replica is in the sync state set."""
        return replica.replica_id in self._required()

    @property
    def caught_up(self) -> frozenset[int]:
        """Ids of the connected replicas that the sync state set should contain."""
        now_ms, required = self._steady_ms(), self._required()
        return frozenset(
            number
            for number, acknowledged in self._acknowledged().items()
            if self._has_caught_up(number, acknowledged, now_ms, is_required=number in required)
        )

    def _has_caught_up(
        self, number: int, acknowledged: int, now_ms: int, *, is_required: bool
    ) -> bool:
        if not is_required:
            return acknowledged >= max(self._replicated.offset, self._epoch_start())
        progress = self._progress.get(number)
        return progress is not None and now_ms - progress.caught_up_ms <= self._catch_up_ms_max

    def update(self) -> None:
        """Advance the confirm offset to the log that all required members have.

        Called after a report, after an append, and when the set has changed.
        """
        acknowledged, required = self._acknowledged(), self._required()
        self._update_progress(acknowledged)
        others = required - {self._own_id}
        self._replicated.timeout_ms = self._config().replica_timeout_ms
        self._replicated.refusal = refusal_of(self._config(), len(others))
        if required and acknowledged.keys() >= others:
            self._replicated.advance(
                min((acknowledged[number] for number in others), default=self._log_end())
            )
        caught_up = self.caught_up
        if caught_up != self._caught_up:
            self._caught_up = caught_up
            self._on_change()

    def _acknowledged(self) -> dict[int, int]:
        """Return the end of each replica's log by id; of several connections, the lowest."""
        offsets: dict[int, int] = {}
        for replica in self._replicas():
            number, end = replica.replica_id, replica.acknowledged
            if number is not None and end is not None and not replica.is_learner:
                offsets[number] = min(end, offsets.get(number, end))
        return offsets

    def _update_progress(self, acknowledged: dict[int, int]) -> None:
        now_ms, log_end = self._steady_ms(), self._log_end()
        for number, end in acknowledged.items():
            progress = self._progress.setdefault(number, _Progress(now_ms, now_ms, log_end))
            if end >= log_end:
                progress.caught_up_ms = now_ms
            elif end >= progress.log_end:
                progress.caught_up_ms = max(progress.caught_up_ms, progress.report_ms)
            else:
                continue
            progress.report_ms, progress.log_end = now_ms, log_end
        for number in self._progress.keys() - acknowledged.keys():
            del self._progress[number]
