"""Retention of log files: by age at the configured hour, earlier when the disk fills up.

A file that a component still needs is never removed: `pins` return the first log offset that is
needed. A pin that is unknown, because its plugin has not started, has stopped or failed, keeps
every file. The current file is never removed either.

The owner of a pin may read `files_to_free`: the files that would be removed without pins because
the disk fills up. After it has appended copies of the records that it needs, these files can be
removed.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise

from msgspec import Struct

from duemq_common.errors import CorruptStore
from message_store.config import StoreConfig
from message_store.log.commit_log import LogFile, erase_files
from message_store.queues.consume_queue import ConsumeQueue
from message_store.reader import StoreReader
from message_store.retention.pins import (
    UNKNOWN,
    FirstPending,
    Pin,
    Unknown,
    first_pending,
    is_pinned,
)

QUEUES_AT_ONCE = 64  # maximum queues corrected in one turn of the event loop


class LogFileInfo(Struct, frozen=True):
    """Input of the planner about one log file."""

    end: int
    modified_ms: int


class RemovalPlan(Struct, frozen=True):
    """Number of the oldest files to remove, and the reason for not removing more."""

    remove: int
    pinned: bool  # the next one is, or may be, needed


class Removal(Struct, frozen=True):
    """Files that would be removed without pins.

    Attributes:
        until: Log offset that the files end before.
        bytes: Bytes to free on the disk, 0 if none.
    """

    until: int = 0
    bytes: int = 0


def plan_removal(
    files: Iterable[LogFileInfo],
    config: StoreConfig,
    *,
    now_ms: int,
    hour: int,
    disk_percent: float,
    pinned_from: FirstPending,
    durable: int,
    requested_until: int = 0,
) -> RemovalPlan:
    """Return the plan of a removal; the last file is never removed.

    Args:
        files: All files, oldest first.
        requested_until: Log offset; expired files before it are removed at any hour.
    """
    forced = config.clean_forcibly and disk_percent > config.disk_forcible_percent
    timely = hour in config.clean_hours or disk_percent > config.disk_used_percent_max
    count = 0
    for file in _all_but_last(files):
        requested = timely or file.end <= requested_until
        if not (forced or (requested and is_expired(file, config, now_ms))):
            break
        if count >= config.delete_files_max or file.end > durable:
            break
        if is_pinned(file.end, pinned_from):
            return RemovalPlan(count, True)
        count += 1
    return RemovalPlan(count, False)


def is_expired(file: LogFileInfo, config: StoreConfig, now_ms: int) -> bool:
    """Return whether a file is older than fileReservedTime."""
    return now_ms - file.modified_ms > config.file_reserved_hours * 3_600_000


def plan_freeing(
    files: Iterable[LogFileInfo], config: StoreConfig, *, now_ms: int, used: int, free: int
) -> Removal:
    """Return the files that should be removed because the disk fills up.

    Args:
        used, free: Bytes of the disk.
    """
    total = used + free
    forced = config.clean_forcibly and used * 100 > config.disk_forcible_percent * total
    percent = config.disk_forcible_percent if forced else config.disk_used_percent_max
    excess = used - percent * total // 100
    if excess <= 0:
        return Removal()
    until = _leading(files, lambda file: forced or is_expired(file, config, now_ms))
    return Removal(until, excess) if until else Removal()


def _all_but_last(files: Iterable[LogFileInfo]) -> Iterator[LogFileInfo]:
    """Yield the files without the last one; reads one more than the caller takes."""
    return (file for file, _ in pairwise(files))


def _leading(files: Iterable[LogFileInfo], chosen: Callable[[LogFileInfo], bool]) -> int:
    """Return the end of the leading chosen files without the last file, 0 if none is chosen."""
    until = 0
    for file in _all_but_last(files):
        if not chosen(file):
            break
        until = file.end
    return until


class Retention:
    """Retention of one store: removes log files as planned."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._pins: list[tuple[str, Pin]] = []
        self._failing: set[str] = set()  # owners whose pin has raised
        self._requested_until = 0
        self._one_at_a_time = asyncio.Lock()
        self.removed_files = 0
        self.pinned = False

    def add_pin(self, pin: Pin, owner: str = "") -> None:
        """Add a pin: a function that returns the first log offset that its owner needs."""
        self._pins.append((owner, pin))

    def first_pinned(self, *, but: Collection[str] = ()) -> FirstPending:
        """Return the lowest needed log offset, None if no offset is needed, or `UNKNOWN`.

        Args:
            but: Owners whose pins are ignored.
        """
        pins = [(owner, pin) for owner, pin in self._pins if owner not in but]
        return first_pending(self._query(owner, pin) for owner, pin in pins)

    def _query(self, owner: str, pin: Pin) -> FirstPending:
        """Query a pin; return its offset, `UNKNOWN` if the pin raises."""
        try:
            offset = pin()
        except Exception as error:
            if owner not in self._failing:
                self._failing.add(owner)
                self._store.notice(
                    f"no log file is removed: {owner or 'the owner of a pin'} does not report "
                    f"which messages are pending: {type(error).__name__}: {error}"
                )
            return UNKNOWN
        self._failing.discard(owner)
        return offset

    # -- requests -----------------------------------------------------------------------------

    def files_to_free(self) -> Removal:
        """Return the files that should be removed because the disk fills up."""
        store, config = self._store, self._store.config
        used, free = store.disk_bytes
        lowest = min(config.disk_used_percent_max, config.disk_forcible_percent)
        if used * 100 <= lowest * (used + free):
            return Removal()  # the common case does not read the files
        now_ms = store.clock.now_ms()
        return plan_freeing(self._file_infos(), config, now_ms=now_ms, used=used, free=free)

    def expired_files(self) -> Removal:
        """Return the expired files, regardless of disk usage."""
        config, now_ms = self._store.config, self._store.clock.now_ms()
        until = _leading(self._file_infos(), lambda file: is_expired(file, config, now_ms))
        return Removal(until, until)

    def request_removal(self, until: int) -> None:
        """Remove expired files before a log offset in the next rounds, at any hour."""
        self._requested_until = max(self._requested_until, until)

    @property
    def room(self) -> int:
        """Bytes that may be written before writes are refused."""
        used, free = self._store.disk_bytes
        return self._store.config.disk_warning_percent * (used + free) // 100 - used

    def _file_infos(self) -> Iterator[LogFileInfo]:
        """Yield facts about the log files, oldest first; each takes a system call."""
        for file in self._store.log.files:
            yield LogFileInfo(file.base + file.size, int(file.modified_s() * 1_000))

    # -- removal --------------------------------------------------------------------------------

    def clean(self) -> int:
        """Remove the files that can be removed, in the calling thread; return their number."""
        files = self._detach()
        count = len(files)
        if files:
            for queue in self._store.queues.all():
                self._correct(queue)
            self._erase(files)
        return count

    async def clean_in_thread(self) -> int:
        """Remove the files that can be removed, without blocking the event loop."""
        async with self._one_at_a_time:
            files = self._detach()
            count = len(files)
            if files:
                for number, queue in enumerate(self._store.queues.all()):
                    self._correct(queue)
                    if number % QUEUES_AT_ONCE == 0:
                        await asyncio.sleep(0)
                await asyncio.to_thread(self._erase, files)
            return count

    def _correct(self, queue: ConsumeQueue) -> None:
        """Remove units of removed records from a queue; report a queue that cannot be read."""
        try:
            queue.correct_min(self._store.log.min_offset)
        except (CorruptStore, OSError) as error:
            self._store.notice(f"{queue.directory} keeps units of removed records: {error}")

    async def finish(self) -> None:
        """Wait until no round is running."""
        async with self._one_at_a_time:
            pass

    def _erase(self, files: list[LogFile]) -> None:
        """Remove detached files. Any thread may call it."""
        store = self._store
        try:
            erase_files(files)
            store.index.remove_before(store.log.min_offset)
            store.queues.deletions.write()
        except OSError as error:
            store.notice(f"old files of {store.root} stay until the next start: {error}")

    def _detach(self) -> list[LogFile]:
        """Detach the files that can be removed from the log."""
        store = self._store
        now_ms = store.clock.now_ms()
        used, free = store.disk_bytes
        pinned_from = self.first_pinned()
        plan = plan_removal(
            self._file_infos(),
            store.config,
            now_ms=now_ms,
            hour=datetime.datetime.fromtimestamp(now_ms / 1_000).astimezone().hour,
            disk_percent=100 * used / max(used + free, 1),
            pinned_from=pinned_from,
            durable=store.durable_offset,
            requested_until=self._requested_until,
        )
        files = [store.log.detach_first() for _ in range(plan.remove)]
        if files:
            store.queues.deletions.fit(store.log.min_offset, store.log.end)
            self.removed_files += len(files)
        if plan.pinned and not self.pinned and not isinstance(pinned_from, Unknown):
            store.notice(f"{store.log.files[0].path} is kept: a pending message is in it")
        self.pinned = plan.pinned
        return files
