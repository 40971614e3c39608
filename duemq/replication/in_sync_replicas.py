"""Replicas that are in sync, and the log offset that enough of them have acknowledged.

A replica is in sync while its lag is below haMaxGapNotInSync. The master counts as one of
inSyncReplicas, minInSyncReplicas. SYNC_MASTER waits for one replica at least: with Apache 5.x,
whose inSyncReplicas is 1, it waits for none.

Source: DefaultHAService.inSyncReplicasNums, GroupTransferService, CommitLog.calcNeedAckNums
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from duemq.replication.ha_server_config import HaServerConfig
from message_store.replication.acknowledgement import Missing, Replicated

log = logging.getLogger(__name__)
MASTER = 1  # counts as a replica


class Replica(Protocol):
    """What is needed of a connection."""

    @property
    def acknowledged(self) -> int | None:
        """End of the replica's log, None before its first report."""
        ...


class InSyncReplicas:
    """Advances `Replicated` as replicas report.

    Args:
        replicas: Returns the connected replicas, each once.
        log_end: Returns the end of the master's log.
    """

    def __init__(
        self,
        replicated: Replicated,
        config: Callable[[], HaServerConfig],
        replicas: Callable[[], Iterable[Replica]],
        log_end: Callable[[], int],
    ) -> None:
        self._replicated, self._config = replicated, config
        self._replicas, self._log_end = replicas, log_end
        self._was_possible: bool | None = None

    def is_in_sync(self, replica: Replica) -> bool:
        """Return whether a replica's lag is small enough."""
        end = replica.acknowledged
        return end is not None and self._log_end() - end < self._config().gap_bytes_max

    def update(self) -> None:
        """Confirm what enough replicas have, after a report, an append, or a change of them."""
        replicated, config = self._replicated, self._config()
        if not replicated.required:
            return
        log_end = self._log_end()
        ends = [end for each in self._replicas() if (end := each.acknowledged) is not None]
        ends = sorted((end for end in ends if log_end - end < config.gap_bytes_max), reverse=True)
        needed = needed_replicas(config, len(ends))
        replicated.timeout_ms = config.replica_timeout_ms
        replicated.refusal = refusal_of(config, len(ends))
        self._set_possible(needed <= len(ends), needed, len(ends))
        if replicated.is_possible:
            replicated.advance(ends[needed - 1] if needed else log_end)

    def _set_possible(self, is_possible: bool, needed: int, found: int) -> None:
        replicated = self._replicated
        if is_possible and not self._was_possible:
            log.info("%d replicas are in sync: messages are confirmed", found)
        elif not is_possible and self._was_possible is not False:
            log.warning(
                "%d replicas are in sync, %d are needed: sends are answered %d, and consumers "
                "receive nothing after log offset %d. Start a replica, or set "
                "enableAutoInSyncReplicas=true to continue without",
                found, needed, Missing.NO_REPLICA.code, replicated.offset,
            )  # fmt: skip
        replicated.is_possible = self._was_possible = is_possible


def needed_replicas(config: HaServerConfig, in_sync: int) -> int:
    """Return how many replicas must acknowledge a message, the master not counted.

    Args:
        in_sync: Number of replicas that are in sync.
    """
    needed = max(config.in_sync_replicas - MASTER, 1)
    if config.all_ack:
        needed = max(in_sync, 1)
    if config.auto_in_sync_replicas:
        needed = max(min(needed, in_sync), config.in_sync_replicas_min - MASTER)
    return needed


def refusal_of(config: HaServerConfig, in_sync: int) -> str:
    """Return why no message is appended, or an empty text.

    Args:
        in_sync: Number of replicas that are in sync.
    """
    found, least = in_sync + MASTER, config.in_sync_replicas_min
    if found >= least:
        return ""
    return f"in-sync replicas not enough: {found} with this master, minInSyncReplicas is {least}"
