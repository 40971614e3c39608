"""Projection of the ownership journal to ledger records: one per step, and level states.

    log --marks.read--> Told.take(marked) --records--> LedgerWriter.note
                              |
                              +-- snapshot() --> what a ledger is rebuilt of

Steps that follow each other are one event for STEPS_MS: a migration takes hundreds a second.

A level that is paused says so by a state mark from its state to the same state, with the cause as
`why`; the same without a cause: it was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from delivery.ownership import JournalEntry, OwnershipRecord, Return, Route, StateRecord, Transfer
from message_store.ledger.records import Record
from message_store.ranges import Range
from migration.ledger.records import (
    LIVE,
    OFFLINE,
    EventRecord,
    LevelRecord,
    MigrationRecord,
    Snapshot,
    mark_key,
)
from migration.ownership.states import State

UNIT_BYTES: Final = 52
"""What a message costs in the timer log."""
STEPS_MS: Final = 5_000
FINAL: Final = frozenset({State.DONE, State.ROLLED_BACK})


class LedgerProjection:
    """Folds marks, in their order.

    Args:
        before: what marks came to that are no longer in the log; its events are not needed.
    """

    def __init__(self, before: Snapshot | None = None) -> None:
        known = before or Snapshot(next_mark=0)
        self._migrations = {item.migration_id: item for item in known.migrations}
        self._levels = {(item.migration_id, item.level): item for item in known.levels}
        self._events: list[EventRecord] = list(known.events)
        self._steps: dict[tuple[str, int], _Steps] = {}  # the last ones of a level
        self.next_mark = known.next_mark

    def take(self, entry: JournalEntry) -> list[Record]:
        """Apply the next record; return the changes of the ledger, none for a known record."""
        if entry.queue_offset < self.next_mark:
            return []
        record, self.next_mark = entry.record, entry.queue_offset + 1
        key = record.migration, record.level
        event = self._event(key, entry)
        level = self._levels.get(key) or LevelRecord(
            migration_id=record.migration,
            level=record.level,
            state=State.PLANNED,
            updated_ms=entry.store_ms,
        )
        self._levels[key] = level = _after(replace(level, updated_ms=entry.store_ms), record)
        run = self._migrations[record.migration] = self._run_after(entry)
        return [run, level, event]

    def snapshot(self) -> Snapshot:
        """Return all of it."""
        return Snapshot(
            next_mark=self.next_mark,
            migrations=list(self._migrations.values()),
            levels=list(self._levels.values()),
            events=list(self._events),
        )

    def _event(self, key: tuple[str, int], entry: JournalEntry) -> EventRecord:
        """Return the event of an ownership record: a new one, or that of earlier steps."""
        steps = self._steps.pop(key, None)
        if steps is not None and steps.take(entry):
            self._steps[key] = steps
            self._events[steps.place] = event = steps.event
            return event
        event = event_of(entry)
        if isinstance(entry.record, Transfer | Return):
            self._steps[key] = _Steps(len(self._events), event, entry.record)
        self._events.append(event)
        return event

    def _run_after(self, entry: JournalEntry) -> MigrationRecord:
        record, at_ms = entry.record, entry.store_ms
        run = self._migrations.get(record.migration)
        if run is None:
            run = MigrationRecord(
                migration_id=record.migration, mode=mode_of(record.migration), started_ms=at_ms
            )
        if isinstance(record, StateRecord) and not run.started_by:
            run = replace(run, started_by=record.who)
        states = {
            item.state for (name, _), item in self._levels.items() if name == record.migration
        }
        if not states <= FINAL:
            return replace(run, ended_ms=None)
        return replace(run, ended_ms=at_ms if run.ended_ms is None else run.ended_ms)


@dataclass(slots=True)
class _Steps:
    """Steps of a level that follow each other; `mark`: all of them as if they were one."""

    place: int
    event: EventRecord
    record: Transfer | Return
    count: int = 1

    def take(self, entry: JournalEntry) -> bool:
        """Take another mark in; return whether it goes on with these."""
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
            self.record = replace(before, end=record.end, excluded=excluded, count=count)
        elif isinstance(record, Return) and isinstance(before, Return):
            self.record = replace(before, count=before.count + record.count)
        else:
            return False
        self.count += 1
        text = f"{_words(self.record)[2]}, {self.count} steps"
        self.event = replace(self.event, text=text)
        return True


def _after(level: LevelRecord, record: OwnershipRecord) -> LevelRecord:
    match record:
        case Route():
            return replace(level, fence=record.fence) if record.on else level
        case Transfer():
            return replace(
                level,
                cursor=max(level.cursor, record.end),
                moved=level.moved + record.count,
                moved_bytes=level.moved_bytes + record.count * UNIT_BYTES,
                excluded=level.excluded + _length(record.excluded),
            )
        case Return():
            return replace(level, given_back=level.given_back + record.count)
        case StateRecord():
            paused = record.source == record.target and bool(record.why)
            cause = record.why if paused else ""
            return replace(level, state=State(record.target), paused=paused, cause=cause)


def mode_of(migration_id: str) -> str:
    """Return whether a broker ran while it migrated: the name of a run begins with it."""
    return OFFLINE if migration_id.startswith(f"{OFFLINE}-") else LIVE


def event_of(entry: JournalEntry) -> EventRecord:
    """Describe an ownership record in words."""
    record = entry.record
    kind, who, text = _words(record)
    return EventRecord(
        key=mark_key(entry.queue_offset),
        migration_id=record.migration,
        at_ms=entry.store_ms,
        kind=kind,
        level=record.level,
        who=who,
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
            ahead = f", {_length(record.excluded)} settled ahead" if record.excluded else ""
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
            return "state", record.who, text.replace("_", " ")


def _length(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in ranges)
