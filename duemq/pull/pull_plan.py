"""Selection of the messages of a pull: pure decisions over consume queue units.

    offset against min, max --outcome_of_offset--> an answer, or "read the queue"
    units --filter, log start, limits--> what to hand out, and where the next pull begins

nextBeginOffset always advances past units that were checked and not matched, so a client with a
narrow filter never spins. DefaultMessageStore.getMessage.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from duemq.kernels import leading_units
from duemq.net.codes import ResponseCode
from duemq.registry.subscriptions import Subscription
from message_store.config import StoreConfig

if TYPE_CHECKING:
    from message_store.store import MessageStore

BLANK_UNIT_SIZE = 0x7FFF_FFFF  # a unit that only fills the space before the first message
DISK_BYTES_MAX, DISK_COUNT_MAX = 65_536, 8
UNITS_LOOKED_AT_MAX = 800  # maxFilterMessageSize / 20
NO_MATCH = "NO_MATCHED_MESSAGE"


@dataclass(frozen=True, slots=True)
class PullLimits:
    """Maximum bytes and messages of one pull, by where the messages are stored."""

    memory_bytes: int = 262_144  # maxTransferBytesOnMessageInMemory
    memory_count: int = 32  # maxTransferCountOnMessageInMemory
    disk_bytes: int = 65_536  # maxTransferBytesOnMessageInDisk
    disk_count: int = 8  # maxTransferCountOnMessageInDisk
    memory_span_bytes: int = 1 << 30  # bytes at the log's end that count as in memory


def limits_from(config: StoreConfig, memory_bytes: int) -> PullLimits:
    """Return the limits of a configuration for a machine with `memory` bytes."""
    return PullLimits(
        memory_bytes=config.pull_bytes_max,
        memory_count=config.pull_count_max,
        disk_bytes=min(DISK_BYTES_MAX, config.pull_bytes_max),
        disk_count=min(DISK_COUNT_MAX, config.pull_count_max),
        memory_span_bytes=memory_bytes * config.memory_percent_max // 100,
    )


class StoreLimits:
    """The limits of a store's configuration, which may be replaced while it is open."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._config: StoreConfig | None = None
        self._limits = PullLimits()

    def __call__(self) -> PullLimits:
        """Return the limits in force."""
        config = self._store.config
        if config is not self._config:
            self._config, self._limits = config, limits_from(config, self._memory_bytes)
        return self._limits


@dataclass(slots=True)  # made for every pull; frozen ones take four times as long to make
class PullRequest:
    """Arguments of a pull; PullMessageRequestHeader."""

    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    bytes_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    version: int

    COMMIT, SUSPEND, SUBSCRIPTION, CLASS_FILTER, LITE = 1, 2, 4, 8, 16

    def has(self, bit: int) -> bool:
        """Return whether a bit of the pull's sysFlag is set."""
        return bool(self.sys_flag & bit)


@dataclass(slots=True)
class Outcome:
    """Plan of a pull. `units` are the messages to return: (n,) layout.UNIT."""

    code: int
    status: str
    next_offset: int
    units: npt.NDArray[Any] | None = None


FOUND = "FOUND"


def outcome_of_offset(
    offset: int, min_offset: int, max_offset: int, *, queue_end: int = 0
) -> Outcome | None:
    """Return the answer that the offset alone decides, or None when the queue must be read.

    Args:
        min_offset, max_offset: what consumers may read of the queue.
        queue_end: offset after its last message. One before it that cannot be read yet
            (after a kill, until the disk has synced again) is waited for: moving the consumer
            back would give it messages twice.
    """
    if max_offset < offset <= queue_end:
        return Outcome(int(ResponseCode.PULL_NOT_FOUND), "OFFSET_OVERFLOW_ONE", offset)
    moved = int(ResponseCode.PULL_OFFSET_MOVED)
    not_found = int(ResponseCode.PULL_NOT_FOUND)
    if max_offset == 0:
        return Outcome(not_found if offset == 0 else moved, "NO_MESSAGE_IN_QUEUE", 0)
    if offset < min_offset:
        return Outcome(moved, "OFFSET_TOO_SMALL", min_offset)
    if offset == max_offset:
        return Outcome(not_found, "OFFSET_OVERFLOW_ONE", offset)
    if offset > max_offset:
        return Outcome(moved, "OFFSET_OVERFLOW_BADLY", max_offset)
    return None


def units_wanted(request: PullRequest, subscription: Subscription, limits: PullLimits) -> int:
    """Return the number of units to check: no more than the pull can return when all match."""
    if subscription.matches_all:
        return min(request.count_max, limits.memory_count)
    return max(UNITS_LOOKED_AT_MAX, request.count_max)


def choose(
    units: npt.NDArray[Any],
    request: PullRequest,
    subscription: Subscription,
    limits: PullLimits,
    *,
    log_min: int,
    log_max: int,
    passing: npt.NDArray[np.bool_] | None = None,
) -> Outcome:
    """Return the plan for `units`, which begin at the request's offset.

    Args:
        units: (n,) layout.UNIT, n >= 1.
        log_min, log_max: Bounds of the commit log; units below were removed.
        passing: (n,) whether the properties of the record pass the filter; None: no filter.
    """
    if subscription.matches_all:
        count = leading_units(
            units,
            max(log_min, log_max - limits.memory_span_bytes),
            BLANK_UNIT_SIZE,
            min(request.count_max, limits.memory_count),
            min(request.bytes_max, limits.memory_bytes),
        )
        if count >= 0:
            return Outcome(0, FOUND, request.offset + count, units[:count])
    present = (units["phys_offset"] >= log_min) & (units["size"] != BLANK_UNIT_SIZE)
    matching = subscription.mask(units["tags_code"]) if passing is None else passing
    wanted = np.flatnonzero(present & matching)
    if wanted.size == 0:
        status = NO_MATCH if present.any() else "MESSAGE_WAS_REMOVING"
        code = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
        return Outcome(code, status, request.offset + units.size)
    count = _count_within(units[wanted], request, limits, log_max)
    looked_at = units.size if count == wanted.size else int(wanted[count])
    return Outcome(0, FOUND, request.offset + looked_at, units[wanted[:count]])


def _count_within(
    units: npt.NDArray[Any], request: PullRequest, limits: PullLimits, log_max: int
) -> int:
    """Return the number of these units that fit into one response: at least one."""
    if log_max - int(units["phys_offset"].min()) <= limits.memory_span_bytes:
        count = min(units.size, request.count_max, limits.memory_count)
        size = int(units["size"][:count].sum())
        if size <= min(request.bytes_max, limits.memory_bytes):
            return count
    in_memory = log_max - units["phys_offset"] <= limits.memory_span_bytes
    bytes_max = np.where(in_memory, limits.memory_bytes, limits.disk_bytes)
    count_max = np.where(in_memory, limits.memory_count, limits.disk_count)
    total_bytes = np.cumsum(units["size"], dtype=np.int64)
    number = np.arange(1, units.size + 1)
    over = (number > request.count_max) | (number > count_max)
    over |= (total_bytes > request.bytes_max) | (total_bytes > bytes_max)
    over[0] = False
    return int(np.argmax(over)) if over.any() else units.size


def without(units: npt.NDArray[Any], phys_offset: int) -> npt.NDArray[Any]:
    """Return the units without the one that points at `phys_offset`."""
    kept: npt.NDArray[Any] = units[units["phys_offset"] != phys_offset]
    return kept
