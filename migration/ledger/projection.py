"""Projection of the ownership journal to ledger records: one per step, and level states.

    log --marks.read--> Told.take(marked) --records--> LedgerWriter.note
                              |
                              +-- fold() --> what a ledger is rebuilt of

Steps that follow each other are one event for STEPS_MS: a migration takes hundreds a second.

A level that is paused says so by a state mark from its state to the same state, with the cause as
`why`; the same without a cause: it was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from delivery.ownership import Mark, Marked, Return, Route, StateRecord, Transfer
from message_store.ranges import Range
from migration.ledger.records import (
    LIVE,
    OFFLINE,
    EventRecord,
    Fold,
    LevelRecord,
    MigrationRecord,
    Record,
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

    def __init__(self, before: Fold | None = None) -> None:
        known = before or Fold(next_mark=0)
        self._migrations = {item.migration_id: item for item in known.migrations}
        self._levels = {(item.migration_id, item.level): item for item in known.levels}
        self._events: list[EventRecord] = list(known.events)
        self._steps: dict[tuple[str, int], _Steps] = {}  # the last ones of a level
        self.next_mark = known.next_mark

    def take(self, marked: Marked) -> list[Record]:
        """Fold the next mark; return what changed in the ledger, nothing for one that is known."""
        if marked.at < self.next_mark:
            return []
        mark, self.next_mark = marked.mark, marked.at + 1
        key = mark.migration, mark.level
        event = self._event(key, marked)
        level = self._levels.get(key) or LevelRecord(
            migration_id=mark.migration,
            level=mark.level,
            state=State.PLANNED,
            updated_ms=marked.store_ms,
        )
        self._levels[key] = level = _after(replace(level, updated_ms=marked.store_ms), mark)
        run = self._migrations[mark.migration] = self._run_after(marked)
        return [run, level, event]

    def fold(self) -> Fold:
        """Return all of it."""
        return Fold(
            next_mark=self.next_mark,
            migrations=list(self._migrations.values()),
            levels=list(self._levels.values()),
            events=list(self._events),
        )

    def _event(self, key: tuple[str, int], marked: Marked) -> EventRecord:
        """Return the event that tells of a mark: one of its own, or that of steps before it."""
        steps = self._steps.pop(key, None)
        if steps is not None and steps.take(marked):
            self._steps[key] = steps
            self._events[steps.place] = event = steps.event
            return event
        event = event_of(marked)
        if isinstance(marked.mark, Transfer | Return):
            self._steps[key] = _Steps(len(self._events), event, marked.mark)
        self._events.append(event)
        return event

    def _run_after(self, marked: Marked) -> MigrationRecord:
        mark, at_ms = marked.mark, marked.store_ms
        run = self._migrations.get(mark.migration)
        if run is None:
            run = MigrationRecord(
                migration_id=mark.migration, mode=mode_of(mark.migration), started_ms=at_ms
            )
        if isinstance(mark, StateRecord) and not run.started_by:
            run = replace(run, started_by=mark.who)
        states = {item.state for (name, _), item in self._levels.items() if name == mark.migration}
        if not states <= FINAL:
            return replace(run, ended_ms=None)
        return replace(run, ended_ms=at_ms if run.ended_ms is None else run.ended_ms)


@dataclass(slots=True)
class _Steps:
    """Steps of a level that follow each other; `mark`: all of them as if they were one."""

    place: int
    event: EventRecord
    mark: Transfer | Return
    count: int = 1

    def take(self, marked: Marked) -> bool:
        """Take another mark in; return whether it goes on with these."""
        mark, before = marked.mark, self.mark
        if not 0 <= marked.store_ms - self.event.at_ms < STEPS_MS:
            return False
        if isinstance(mark, Transfer) and isinstance(before, Transfer) and mark.first == before.end:
            excluded = before.excluded + mark.excluded
            count = before.count + mark.count
            self.mark = replace(before, end=mark.end, excluded=excluded, count=count)
        elif isinstance(mark, Return) and isinstance(before, Return):
            self.mark = replace(before, count=before.count + mark.count)
        else:
            return False
        self.count += 1
        text = f"{_words(self.mark)[2]}, {self.count} steps"
        self.event = replace(self.event, text=text)
        return True


def _after(level: LevelRecord, mark: Mark) -> LevelRecord:
    match mark:
        case Route():
            return replace(level, fence=mark.fence) if mark.on else level
        case Transfer():
            return replace(
                level,
                cursor=max(level.cursor, mark.end),
                moved=level.moved + mark.count,
                moved_bytes=level.moved_bytes + mark.count * UNIT_BYTES,
                excluded=level.excluded + _length(mark.excluded),
            )
        case Return():
            return replace(level, given_back=level.given_back + mark.count)
        case StateRecord():
            paused = mark.source == mark.target and bool(mark.why)
            cause = mark.why if paused else ""
            return replace(level, state=State(mark.target), paused=paused, cause=cause)


def mode_of(migration_id: str) -> str:
    """Return whether a broker ran while it migrated: the name of a run begins with it."""
    return OFFLINE if migration_id.startswith(f"{OFFLINE}-") else LIVE


def event_of(marked: Marked) -> EventRecord:
    """Return what a mark tells, in words."""
    mark = marked.mark
    kind, who, text = _words(mark)
    return EventRecord(
        key=mark_key(marked.at),
        migration_id=mark.migration,
        at_ms=marked.store_ms,
        kind=kind,
        level=mark.level,
        who=who,
        text=text,
        mark_offset=marked.at,
    )


def _words(mark: Mark) -> tuple[str, str, str]:
    match mark:
        case Route():
            text = f"new messages are timers, fence {mark.fence}" if mark.on else "as before"
            rules = (f"{topic}: {delay_ms} ms" for topic, delay_ms in sorted(mark.rules.items()))
            return "route", "", "; ".join([text, *rules])
        case Transfer():
            ahead = f", {_length(mark.excluded)} settled ahead" if mark.excluded else ""
            return "handover", "", f"{mark.count} of [{mark.first}, {mark.end}){ahead}"
        case Return():
            return "giveback", "", f"{mark.count} messages"
        case StateRecord():
            if mark.source == mark.target:
                text = f"paused: {mark.why}" if mark.why else "resumed"
            else:
                text = f"{mark.source} -> {mark.target}" + (f": {mark.why}" if mark.why else "")
            return "state", mark.who, text.replace("_", " ")


def _length(ranges: Iterable[Range]) -> int:
    return sum(end - first for first, end in ranges)
