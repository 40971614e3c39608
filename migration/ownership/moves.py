"""Migrations of one store: level states, and transitions, each written to the log first.

    start     a route record (the fence), then a state record, in one turn of the event loop
    step      one bounded piece of the work of the level's state
    pause     a state record from a state to the same, with its cause; resume: one without

After each transition the new records of the journal are applied to `journal` (state, route and
counts) and `ledger` (records for the ledger). `heal` repairs a crash between two records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from delivery import ownership
from delivery.ownership import StateRecord
from delivery.ownership_projection import JournalProjection
from message_store.clock import Clock
from message_store.errors import CorruptStore, UsageError
from message_store.ledger.records import Record
from message_store.store import MessageStore
from migration.ledger.projection import UNIT_BYTES, LedgerProjection
from migration.ledger.records import LevelRecord, MigrationRecord, Snapshot
from migration.ownership import projection
from migration.ownership.owners import Owners
from migration.ownership.states import Event, LevelState, State
from migration.steps.drain import Drain, Step
from migration.steps.return_units import ReturnUnits, Unroute
from migration.steps.router import Router

log = logging.getLogger(__name__)
HEALED_BY: Final = "recovery"


class Migrations:
    """All levels of one store. Belongs to the event loop's thread.

    Args:
        tell: called with changed ledger records.
    Attributes:
        waits: why nothing moved in a level's last step though something is there, by level.
    """

    def __init__(
        self, store: MessageStore, clock: Clock, router: Router, *, tell: Callable[..., None]
    ) -> None:
        self._store, self._clock, self.router, self._tell = store, clock, router, tell
        self._written = self._load(store)
        self._writing = asyncio.Lock()
        self._read_to = ownership.bounds(store)[1]  # queue offset of the next record to look at
        self.journal = projection.restore(store)
        removed = ownership.bounds(store)[0] or (
            self._written.levels and not self._written.next_offset
        )
        self.ledger = LedgerProjection(_before(self._written) if removed else None)
        self.waits: dict[int, str] = {}
        self._drain: Drain | None = None
        for level in self.journal.levels.values():
            router.set_route(level)
        for entry in ownership.read(store, quiet=True):
            self.ledger.take(entry)

    def bind(self, owners: Owners) -> None:
        """Work between these from now on."""
        self._owners = owners
        parts = owners.levels, owners.timers, self._store, self._clock
        self._drain = Drain(*parts, wake=owners.wake_timers)
        self._return_units = ReturnUnits(*parts)
        self._unroute = Unroute(
            self.router, owners.timers, self._store, self._clock, wake=owners.levels.wake
        )

    # -- what is so ---------------------------------------------------------------------------

    def state_of(self, level: int) -> LevelState:
        """Return where a level stands; one that was never migrated is planned."""
        found = self.journal.levels.get(level)
        if found is None or not found.state:
            return LevelState(level)
        return LevelState(level, State(found.state), paused=bool(found.why), cause=found.why)

    @property
    def at_work(self) -> list[int]:
        """Levels in which steps are to be taken now."""
        return [level for level in sorted(self.journal.levels) if self.state_of(level).works]

    def left(self, level: int) -> int:
        """Return how many messages are still to be moved, at most."""
        state, owners = self.state_of(level).state, self._owners
        found = owners.levels.levels.get(level)
        if state in (State.ROUTING, State.DRAINING) and found is not None:
            return found.cursor.pending
        if state is State.ROLLING_BACK:
            return sum(end - first for first, end in self._return_units.left(level))
        return 0

    # -- what an operator asks for --------------------------------------------------------------

    def start(
        self, levels: Iterable[int], rules: Mapping[str, int], *, migration: str, who: str
    ) -> None:
        """Route levels from now on, and have them drained.

        Raises:
            IllegalMove: One of them is migrated already; nothing has changed.
            OwnershipRefused: The store takes no writes now; levels before it have started.
        """
        wanted = list(levels)
        for level in wanted:
            current = self.state_of(level)
            (LevelState(level) if current.over else current).after(Event.START)
        for level in wanted:
            owners = self._owners
            self.router.begin(
                self._store, owners.queues, owners.timers, level, rules, self._clock.now_ms(),
                migration=migration,
            )  # fmt: skip
            self._mark(level, State.PLANNED, State.ROUTING, migration=migration, who=who)

    def pause(self, level: int, cause: str, *, who: str) -> None:
        """Take no steps in a level until it is resumed; its new messages stay routed."""
        state = self.state_of(level).pause(cause).state
        self._mark(level, state, state, who=who, why=cause or "paused")

    def resume(self, level: int, *, who: str) -> None:
        """Go on with a level; nothing happens if it was not paused."""
        current = self.state_of(level)
        if current.resume() != current:
            self._mark(level, current.state, current.state, who=who)

    def roll_back(self, level: int, *, who: str) -> None:
        """Give a level everything back."""
        if level not in self.journal.levels:
            raise UsageError(f"level {level} was never migrated: nothing is to be rolled back")
        self._move(level, Event.ROLL_BACK, who=who)

    def proved(self, level: int) -> None:
        """Note that both sides agree."""
        self._move(level, Event.PROVED)

    # -- steps --------------------------------------------------------------------------------

    def step(self, level: int, units_max: int) -> Step:
        """Take one step of a level; a level to be verified has none.

        Raises:
            OwnershipRefused: The store takes no writes now; nothing has changed.
        """
        assert self._drain is not None
        current = self.state_of(level)
        if not current.works or current.state is State.VERIFYING:
            return Step()
        step = self._step(level, current.state, units_max)
        self.catch_up()
        self.waits[level] = step.waits
        return step

    def _step(self, level: int, state: State, units_max: int) -> Step:
        assert self._drain is not None
        name = self.journal.levels[level].migration
        if state is State.ROUTING:
            self._move(level, Event.FENCED)
        elif state is State.DRAINING:
            if not self.is_drained(level):
                return self._drain.step(level, units_max, migration=name)
            self._move(level, Event.EMPTIED)
        elif not self._return_units.is_over(level):
            return self._return_units.step(level, units_max, migration=name)
        elif not self._unroute.is_over(level):
            return self._unroute.step(level, units_max, migration=name)
        else:
            self._move(level, Event.GIVEN_BACK)
            self._unroute.forget(level)
        return Step()

    def is_drained(self, level: int) -> bool:
        """Return whether nothing before the fence is left with the level, or on its way.

        What cannot be routed (see `migration.steps.router`) goes to the level as before, behind
        the fence.
        """
        if self._owners.timers.transfers.behind:
            return False
        found = self._owners.levels.levels.get(level)
        if found is None or not found.cursor.held:
            return True
        return bool(found.cursor.first_undelivered >= self.journal.levels[level].fence)

    def cover(self) -> None:
        """Let Apache's numbers of the levels follow the timers' last checkpoint."""
        assert self._drain is not None
        self._drain.cover(self._owners.keeper)

    def heal(self) -> None:
        """Finish a start that ended between its two marks: a crash, or a store that filled up.

        New messages of such a level are timers already, so it goes on from there.

        Raises:
            OwnershipRefused: The store takes no writes now; the next call tries again.
        """
        self.catch_up()
        for level in list(self.journal.levels):
            found = self.journal.levels[level]
            if found.routed and found.state in ("", State.ROLLED_BACK):
                self._mark(level, State.PLANNED, State.ROUTING, who=HEALED_BY)

    # -- marks --------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Take in what was marked since; a malformed record is met, and reported, once."""
        start, self._read_to = self._read_to, ownership.bounds(self._store)[1]
        for entry in ownership.read(self._store, start):
            self.journal = self.journal.after(entry)
            self._tell(*self.ledger.take(entry))

    async def write(self) -> None:
        """Write the projection in a thread, if the log is synced that far.

        Raises:
            OSError: The disk refused it; the old file stands.
        """
        async with self._writing:
            journal = self.journal
            if (
                journal.next_offset == self._written.next_offset
                or journal.log_offset > self._store.durable_offset
            ):
                return
            await asyncio.to_thread(projection.write, self._store, journal)
            self._written = journal

    def _move(self, level: int, event: Event, *, who: str = "") -> None:
        before = self.state_of(level)
        self._mark(level, before.state, before.after(event).state, who=who)

    def _mark(
        self,
        level: int,
        source: State,
        target: State,
        *,
        migration: str = "",
        who: str = "",
        why: str = "",
    ) -> None:
        name = migration or self.journal.levels[level].migration
        record = StateRecord(
            migration=name, level=level, source=source.value, target=target.value, who=who, why=why
        )
        ownership.append(self._store, record, self._clock.now_ms())
        self.waits.pop(level, None)
        self.catch_up()
        log.info("migration %s: level %d is %s%s", name, level, target, f" ({why})" if why else "")

    @staticmethod
    def _load(store: MessageStore) -> JournalProjection:
        try:
            return projection.load(store)
        except CorruptStore as error:
            log.error("%s The marks in the log are asked instead.", error)
            return JournalProjection()


def _before(written: JournalProjection) -> Snapshot:
    """Return the ledger's records for ownership records that retention removed."""
    known = [level for level in written.levels.values() if level.state]
    runs = {level.migration: level.changed_ms for level in known}
    return Snapshot(
        next_mark=written.next_offset,
        migrations=[MigrationRecord(migration_id=name, started_ms=at) for name, at in runs.items()],
        levels=[
            LevelRecord(
                migration_id=level.migration, level=level.level, state=State(level.state),
                updated_ms=level.changed_ms, fence=level.fence, cursor=level.end,
                moved=level.handed, moved_bytes=level.handed * UNIT_BYTES,
                given_back=level.returned, paused=bool(level.why), cause=level.why,
            )
            for level in known
        ],
    )  # fmt: skip


def records_of(migrations: Migrations) -> list[Record]:
    """Return the ledger's records of all levels."""
    return migrations.ledger.snapshot().records()
