"""Which log files may go: by age at the hour configured, sooner when the disk fills up.

A file that a pending message still needs is never removed: `pins` tell the first log offset that
somebody waits for. The file that is written is never removed either.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_store.config import StoreConfig

if TYPE_CHECKING:
    from message_store.store import MessageStore

Pin = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the planner knows of one log file, oldest first."""

    end: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How many of the oldest files go, and why not more."""

    remove: int
    pinned: bool  # the next one would go, but a pending message lies in it


def plan_removal(
    files: Sequence[FileFacts],
    config: StoreConfig,
    *,
    now_ms: int,
    hour: int,
    disk_percent: float,
    pinned_from: int | None,
    durable: int,
) -> Plan:
    """Decide what to remove. `files` excludes nothing; the last one always stays."""
    reserved_ms = config.file_reserved_hours * 3_600_000
    forced = config.clean_forcibly and disk_percent > config.disk_forcible_percent
    timely = hour in config.clean_hours or disk_percent > config.disk_used_percent_max
    if not (forced or timely):
        return Plan(0, False)
    count = 0
    for file in files[:-1]:
        if not (forced or now_ms - file.modified_ms > reserved_ms):
            break
        if count >= config.delete_files_max or file.end > durable:
            break
        if pinned_from is not None and file.end > pinned_from:
            return Plan(count, True)
        count += 1
    return Plan(count, False)


class Retention:
    """Carries plans out on a store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._pins: list[Pin] = []
        self.removed_files = 0
        self.pinned = False

    def add_pin(self, pin: Pin) -> None:
        """Have `pin` asked for the first log offset that somebody still waits for."""
        self._pins.append(pin)

    def first_pinned(self) -> int | None:
        """Return the lowest offset anybody waits for, or None."""
        return min((at for at in (pin() for pin in self._pins) if at is not None), default=None)

    def clean(self) -> int:
        """Remove what may go; return how many files went."""
        store = self._store
        facts = [FileFacts(f.base + f.size, int(f.modified_s() * 1_000)) for f in store.log.files]
        now_ms = store.clock.now_ms()
        plan = plan_removal(
            facts,
            store.config,
            now_ms=now_ms,
            hour=datetime.datetime.fromtimestamp(now_ms / 1_000).astimezone().hour,
            disk_percent=store.disk_used_ratio * 100,
            pinned_from=self.first_pinned(),
            durable=store.durable_offset,
        )
        for _ in range(plan.remove):
            store.log.remove_first()
        if plan.remove:
            store.queues.correct_min(store.min_offset)
            store.index.remove_before(store.min_offset)
            self.removed_files += plan.remove
        if plan.pinned and not self.pinned:
            store.notice(
                f"{store.log.files[0].path} is kept although it could go: a pending message is "
                f"in it"
            )
        self.pinned = plan.pinned
        return plan.remove
