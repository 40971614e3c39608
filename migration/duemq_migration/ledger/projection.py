"""Projection of the ownership journal to ledger records: one per step, and level states.

    ownership.read --> LedgerProjection.apply(entry) --records--> LedgerWriter.write
                              |
                              +-- snapshot() --> records to rebuild a ledger from

State, route and counts of a level come from `delayed_delivery.ownership_projection`. Consecutive
steps within STEPS_MS are one event, because a migration takes hundreds of steps per second.

A pause of a level is a state record from its state to the same state, with the cause as `why`. Such
a record without a cause ends the pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import Struct

from delayed_delivery.ownership import (
    JournalEntry,
    OwnershipRecord,
    Return,
    Route,
    StateRecord,
    Transfer,
)
from delayed_delivery.ownership_projection import JournalProjection, LevelProjection
from duemq_common.ledger.records import LedgerRecord
from duemq_migration.ledger.records import (
    LIVE,
    OFFLINE,
    EventRecord,
    LedgerLevel,
    LedgerSnapshot,
    MigrationRecord,
    record_key,
)
from duemq_migration.ownership.states import State
from message_store.ranges import Range

UNIT_BYTES: Final = 52
"""Bytes of one message in the timer log."""
STEPS_MS: Final = 5_000
FINAL: Final = frozenset({State.DONE, State.ROLLED_BACK})


class LedgerProjection:
    """Ledger records of the ownership journal, applied in its order.

    Args:
        before: Projection of the records that retention removed; they no longer have events.
    """

    def __init__(self, before: JournalProjection | None = None) -> None:
        self._runs: dict[str, MigrationRecord] = {}
        self._projected: dict[tuple[str, int], LevelProjection] = {}
        self._levels: dict[tuple[str, int], LedgerLevel] = {}
        self._events: list[EventRecord] = []
        self._steps: dict[tuple[str, int], _Steps] = {}  # the last ones of a level
        self.next_record = before.next_offset if before is not None else 0
        for level in before.levels.values() if before is not None else ():
            if level.state:
                key, at_ms = (level.migration, level.level), level.changed_ms
                self._projected[key] = level
                self._levels[key] = record_of(level, at_ms, cause=level.why)
                self._runs[level.migration] = MigrationRecord(
                    migration_id=level.migration, started_ms=at_ms
                )

    def apply(self, entry: JournalEntry) -> list[LedgerRecord]:
        """Apply the next record; return the ledger's changes, none for a record applied before."""
        if entry.queue_offset < self.next_record:
            return []
        record, self.next_record = entry.record, entry.queue_offset + 1
        key = record.migration, record.level
        event = self._event(key, entry)
        before = self._projected.get(key) or LevelProjection(
            level=record.level, migration=record.migration
        )
        self._projected[key] = projected = before.after(entry)
        self._levels[key] = level = _after(self._levels.get(key), projected, entry)
        run = self._runs[record.migration] = self._run_after(entry)
        return [run, level, event]

    def snapshot(self) -> LedgerSnapshot:
        """Return all records."""
        return LedgerSnapshot(
            next_record=self.next_record,
            migrations=list(self._runs.values()),
            levels=list(self._levels.values()),
            events=list(self._events),
        )

    def _event(self, key: tuple[str, int], entry: JournalEntry) -> EventRecord:
        """Return the event of an ownership record: a new one, or that of the previous steps."""
        steps = self._steps.pop(key, None)
        if steps is not None and steps.extend(entry):
            self._steps[key] = steps
            self._events[steps.index] = event = steps.event
            return event
        event = event_of(entry)
        if isinstance(entry.record, Transfer | Return):
            self._steps[key] = _Steps(len(self._events), event, entry.record)
        self._events.append(event)
        return event

    def _run_after(self, entry: JournalEntry) -> MigrationRecord:
        record, at_ms = entry.record, entry.store_ms
        run = self._runs.get(record.migration)
        if run is None:
            run = MigrationRecord(
                migration_id=record.migration, mode=mode_of(record.migration), started_ms=at_ms
            )
        if isinstance(record, StateRecord) and not run.started_by:
            run = replace(run, started_by=record.operator)
        states = {
            item.state for (name, _), item in self._levels.items() if name == record.migration
        }
        if not states <= FINAL:
            return replace(run, ended_ms=None)
        return replace(run, ended_ms=at_ms if run.ended_ms is None else run.ended_ms)


class _Steps(Struct):
    """Consecutive steps of a level; `record` has their totals."""

    index: int
    event: EventRecord
    record: Transfer | Return
    count: int = 1

    def extend(self, entry: JournalEntry) -> bool:
        """Add a record; return False if it does not continue these steps."""
        record, before = entry.record, self.record
        if not 0 <= entry.store_ms - self.event.at_ms < STEPS_MS:
            return False
        if (
            isinstance(record, Transfer)
            and isinstance(before, Transfer)
            and record.first == before.end
        ):
            excluded = before.excluded + record.excluded
            count = before.count + record.count
            self.record = msgspec.structs.replace(
                before, end=record.end, excluded=excluded, count=count
            )
        elif isinstance(record, Return) and isinstance(before, Return):
            self.record = msgspec.structs.replace(before, count=before.count + record.count)
        else:
            return False
        self.count += 1
        text = f"{_words(self.record)[2]}, {self.count} steps"
        self.event = replace(self.event, text=text)
        return True


def record_of(
    level: LevelProjection, updated_ms: int, *, excluded: int = 0, cause: str = ""
) -> LedgerLevel:
    """Return the ledger's record of a level.

    Args:
        cause: Cause of the pause, "" if it is not paused.
    """
    return LedgerLevel(
        migration_id=level.migration,
        level=level.level,
        state=State(level.state or State.PLANNED),
        updated_ms=updated_ms,
        fence=level.fence,
        cursor=level.end,
        moved=level.transferred,
        moved_bytes=level.transferred * UNIT_BYTES,
        excluded=excluded,
        returned=level.returned,
        paused=bool(cause),
        cause=cause,
    )


def _after(
    before: LedgerLevel | None, projected: LevelProjection, entry: JournalEntry
) -> LedgerLevel:
    """Return the ledger's record after one more record, which `projected` contains."""
    record = entry.record
    excluded, cause = (before.excluded, before.cause) if before is not None else (0, "")
    if isinstance(record, Transfer):
        excluded += _length(record.excluded)
    if isinstance(record, StateRecord):
        cause = record.why if record.source == record.target else ""
    level = record_of(projected, entry.store_ms, excluded=excluded, cause=cause)
    if before is not None and not projected.routed:
        return replace(level, fence=before.fence)  # a rollback does not change the fence
    return level


def mode_of(migration_id: str) -> str:
    """Return the mode of a run, `live` or `offline`, from its id."""
    return OFFLINE if migration_id.startswith(f"{OFFLINE}-") else LIVE


def event_of(entry: JournalEntry) -> EventRecord:
    """Return the event of an ownership record, described in words."""
    record = entry.record
    kind, operator, text = _words(record)
    return EventRecord(
        key=record_key(entry.queue_offset),
        migration_id=record.migration,
        at_ms=entry.store_ms,
        kind=kind,
        level=record.level,
        operator=operator,
        text=text,
        mark_offset=entry.queue_offset,
    )


def _words(record: OwnershipRecord) -> tuple[str, str, str]:
    match record:
        case Route():
            text = f"new messages are timers, fence {record.fence}" if record.on else "as before"
            rules = (f"{topic}: {delay_ms} ms" for topic, delay_ms in sorted(record.rules.items()))
            return "route", "", "; ".join([text, *rules])
        case Transfer():
            ahead = f", {_length(record.excluded)} settled before" if record.excluded else ""
            return "handover", "", f"{record.count} of [{record.first}, {record.end}){ahead}"
        case Return():
            return "giveback", "", f"{record.count} messages"
        case StateRecord():
            if record.source == record.target:
                text = f"paused: {record.why}" if record.why else "resumed"
            else:
                text = f"{record.source} -> {record.target}" + (
                    f": {record.why}" if record.why else ""
                )
            return "state", record.operator, text.replace("_", " ")


def _length(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in ranges)
