"""Replicas that are in sync, and the log offset that enough of them have acknowledged.

A replica is in sync while its lag is below haMaxGapNotInSync. inSyncReplicas and minInSyncReplicas
include the master. SYNC_MASTER waits for at least one replica, unlike Apache 5.x, which waits for
none by default (inSyncReplicas=1).

Source: DefaultHAService.inSyncReplicasNums, GroupTransferService, CommitLog.calcNeedAckNums
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from duemq.configuration.ha_server_config import HaServerConfig
from duemq_common.codes import ResponseCode
from message_store.replication.acknowledgement import Missing, Replicated

if TYPE_CHECKING:
    from duemq.replication.replica_connection import ReplicaConnection

log = logging.getLogger(__name__)
MASTER = 1  # the master, which counts as a replica in sync


class InSyncReplicas:
    """Advances `Replicated` as replicas report.

    Args:
        replicated: The confirm offset and its conditions.
        config: Returns the configuration.
        replicas: Returns the connected replicas, each once.
        log_end: Returns the end of the master's log.
    """

    def __init__(
        self,
        replicated: Replicated,
        config: Callable[[], HaServerConfig],
        replicas: Callable[[], Iterable[ReplicaConnection]],
        log_end: Callable[[], int],
    ) -> None:
        self._replicated, self._config = replicated, config
        self._replicas, self._log_end = replicas, log_end
        self._was_possible: bool | None = None

    def is_in_sync(self, replica: ReplicaConnection) -> bool:
        """Return whether a replica's lag is below haMaxGapNotInSync."""
        end = replica.acknowledged
        return end is not None and self._log_end() - end < self._config().gap_bytes_max

    def update(self) -> None:
        """Advance the confirm offset to the log that enough replicas in sync have.

        Called after a report, after an append, and when a replica connects or disconnects.
        """
        replicated, config = self._replicated, self._config()
        if not replicated.required:
            return
        log_end = self._log_end()
        ends = [end for each in self._replicas() if (end := each.acknowledged) is not None]
        ends = sorted((end for end in ends if log_end - end < config.gap_bytes_max), reverse=True)
        needed = needed_replicas(config, len(ends))
        replicated.timeout_ms = config.replica_timeout_ms
        replicated.refusal = refusal_of(config, len(ends))
        self._set_possible(needed <= len(ends), needed, len(ends), config)
        if replicated.is_possible:
            replicated.advance(ends[needed - 1] if needed else log_end)

    def _set_possible(
        self, is_possible: bool, needed: int, in_sync_count: int, config: HaServerConfig
    ) -> None:
        replicated = self._replicated
        code = ResponseCode.SERVICE_NOT_AVAILABLE if replicated.refusal else Missing.NO_REPLICA.code
        if is_possible and not self._was_possible:
            log.info("%d replicas in sync: messages are confirmed", in_sync_count)
        elif not is_possible and self._was_possible is not False:
            log.warning(
                "%d replicas in sync, %d required: sends get response code %d, and consumers "
                "receive nothing after log offset %d. Start a replica, or set %s to continue "
                "without replicas",
                in_sync_count,
                needed,
                code,
                replicated.offset,
                " and ".join(blocking_keys(config)),
            )
        replicated.is_possible = self._was_possible = is_possible


def needed_replicas(config: HaServerConfig, in_sync: int) -> int:
    """Return the number of replicas that must acknowledge a message, without the master.

    Args:
        in_sync: Number of replicas that are in sync.
    """
    needed = max(config.in_sync_replicas - MASTER, 1)
    if config.all_ack:
        needed = max(in_sync, 1)
    if config.auto_in_sync_replicas:
        needed = max(min(needed, in_sync), config.in_sync_replicas_min - MASTER)
    return needed


def blocking_keys(config: HaServerConfig) -> list[str]:
    """Return the settings, as `key=value`, that a master without replicas needs to continue."""
    keys = [] if config.auto_in_sync_replicas else ["enableAutoInSyncReplicas=true"]
    return [*keys, "minInSyncReplicas=1"] if config.in_sync_replicas_min > MASTER else keys


def refusal_of(config: HaServerConfig, in_sync: int) -> str:
    """Return the reason why messages are refused; empty: they are accepted.

    Args:
        in_sync: Number of replicas that are in sync.
    """
    members, least = in_sync + MASTER, config.in_sync_replicas_min
    if members >= least:
        return ""
    counts = f"{members} including this master, minInSyncReplicas is {least}"
    return f"in-sync replicas not enough: {counts}"
