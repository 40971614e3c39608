"""Selection of the messages of a pull: pure decisions over consume queue units.

    offset, queue bounds --outcome_of_offset--> outcome, or None: read the queue
    units --filter, log start, limits--> messages to return, next offset

nextBeginOffset advances past evaluated units without a match, so a client whose filter matches few
messages does not pull the same units again. DefaultMessageStore.getMessage
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from duemq.pull.layout import BLANK_UNIT_SIZE
from duemq.registry.subscriptions import Subscription
from duemq_common.codes import ResponseCode
from message_store.config import StoreConfig
from message_store.kernels.scan import readable_units

if TYPE_CHECKING:
    from message_store.store import MessageStore

DISK_BYTES_MAX, DISK_COUNT_MAX = 65_536, 8
UNITS_LOOKED_AT_MAX = 800  # units evaluated by one pull: maxFilterMessageSize / 20
NO_MATCH = "NO_MATCHED_MESSAGE"


class PullLimits(Struct, frozen=True):
    """Maximum bytes and messages of one pull, for messages in memory and on disk."""

    memory_bytes: int = 262_144  # maxTransferBytesOnMessageInMemory
    memory_count: int = 32  # maxTransferCountOnMessageInMemory
    disk_bytes: int = 65_536  # maxTransferBytesOnMessageInDisk
    disk_count: int = 8  # maxTransferCountOnMessageInDisk
    memory_span_bytes: int = 1 << 30  # size of the log tail that is considered in memory


def limits_from(config: StoreConfig, memory_bytes: int) -> PullLimits:
    """Return the pull limits of a configuration for a machine with `memory_bytes` of memory."""
    return PullLimits(
        memory_bytes=config.pull_bytes_max,
        memory_count=config.pull_count_max,
        disk_bytes=min(DISK_BYTES_MAX, config.pull_bytes_max),
        disk_count=min(DISK_COUNT_MAX, config.pull_count_max),
        memory_span_bytes=memory_bytes * config.memory_percent_max // 100,
    )


class StoreLimits:
    """Pull limits of a store, updated when its configuration changes."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._config: StoreConfig | None = None
        self._limits = PullLimits()

    def __call__(self) -> PullLimits:
        """Return the current limits."""
        config = self._store.config
        if config is not self._config:
            self._config, self._limits = config, limits_from(config, self._memory_bytes)
        return self._limits


class PullRequest(Struct, gc=False):
    """Header of a pull. PullMessageRequestHeader"""

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
        """Return whether a bit of sysFlag is set."""
        return bool(self.sys_flag & bit)


class PullOutcome(Struct, gc=False):
    """Result of a pull.

    Attributes:
        code: Response code.
        status: Remark of the response, as in Apache's GetMessageStatus.
        next_offset: Queue offset of the next pull.
        units: (n,) layout.UNIT: messages to return; None: no messages.
    """

    code: int
    status: str
    next_offset: int
    units: npt.NDArray[np.void] | None = None


FOUND = "FOUND"


def outcome_of_offset(
    offset: int, min_offset: int, max_offset: int, *, queue_end: int = 0
) -> PullOutcome | None:
    """Return the outcome if the offset alone decides it, or None if the queue must be read.

    Args:
        min_offset, max_offset: Range of the queue that consumers may read.
        queue_end: Offset after the queue's last message. Messages from `max_offset` to it exist but
            are not readable until synced, as after a crash. A pull from there finds nothing and
            can be held; a smaller next offset would deliver messages twice.
    """
    if max_offset < offset <= queue_end:
        return PullOutcome(int(ResponseCode.PULL_NOT_FOUND), "OFFSET_OVERFLOW_ONE", offset)
    moved = int(ResponseCode.PULL_OFFSET_MOVED)
    not_found = int(ResponseCode.PULL_NOT_FOUND)
    if max_offset == 0:
        return PullOutcome(not_found if offset == 0 else moved, "NO_MESSAGE_IN_QUEUE", 0)
    if offset < min_offset:
        return PullOutcome(moved, "OFFSET_TOO_SMALL", min_offset)
    if offset == max_offset:
        return PullOutcome(not_found, "OFFSET_OVERFLOW_ONE", offset)
    if offset > max_offset:
        return PullOutcome(moved, "OFFSET_OVERFLOW_BADLY", max_offset)
    return None


def units_to_read(request: PullRequest, subscription: Subscription, limits: PullLimits) -> int:
    """Return the number of units to read for a pull."""
    if subscription.matches_all:
        return min(request.count_max, limits.memory_count)
    return max(UNITS_LOOKED_AT_MAX, request.count_max)


def select_units(
    units: npt.NDArray[np.void],
    request: PullRequest,
    subscription: Subscription,
    limits: PullLimits,
    *,
    log_min: int,
    log_max: int,
    passing: npt.NDArray[np.bool_] | None = None,
) -> PullOutcome:
    """Select messages from `units`, which begin at the request's offset.

    Args:
        units: (n,) layout.UNIT, n >= 1.
        log_min, log_max: Bounds of the commit log; records below `log_min` were removed.
        passing: (n,) bool: results of the property filter; None: the tag filter applies.
    """
    if subscription.matches_all:
        count = readable_units(
            units,
            max(log_min, log_max - limits.memory_span_bytes),
            BLANK_UNIT_SIZE,
            min(request.count_max, limits.memory_count),
            min(request.bytes_max, limits.memory_bytes),
        )
        if count >= 0:
            return PullOutcome(0, FOUND, request.offset + count, units[:count])
    present = (units["phys_offset"] >= log_min) & (units["size"] != BLANK_UNIT_SIZE)
    matching = subscription.mask(units["tags_code"]) if passing is None else passing
    matches = np.flatnonzero(present & matching)
    if matches.size == 0:
        status = NO_MATCH if present.any() else "MESSAGE_WAS_REMOVING"
        code = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
        return PullOutcome(code, status, request.offset + units.size)
    count = _count_within(units[matches], request, limits, log_max)
    evaluated = units.size if count == matches.size else int(matches[count])
    return PullOutcome(0, FOUND, request.offset + evaluated, units[matches[:count]])


def _count_within(
    units: npt.NDArray[np.void], request: PullRequest, limits: PullLimits, log_max: int
) -> int:
    """Return the number of leading units that fit into one response, at least one."""
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


def exclude_unit(units: npt.NDArray[np.void], phys_offset: int) -> npt.NDArray[np.void]:
    """Return the units without the one at `phys_offset`."""
    others: npt.NDArray[np.void] = units[units["phys_offset"] != phys_offset]
    return others
