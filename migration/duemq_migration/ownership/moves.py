"""Migrations of one store: level states, and transitions, each written to the log first.

    start     append a route record (the fence), then a state record, in one turn of the event loop
    step      do one bounded piece of work of the level's state
    pause     append a state record that does not change the state, with a cause
    resume    append such a record without a cause

After each transition the new records of the journal are applied to `journal` (state, route and
counts) and `ledger` (records for the ledger). If the broker ends between the two records of a
start, `append_missing_state` appends the second one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from delayed_delivery import ownership
from delayed_delivery.ownership import StateRecord
from delayed_delivery.ownership_projection import JournalProjection
from duemq_common.clock import Clock
from duemq_common.errors import CorruptStore, UsageError
from duemq_migration.ledger.projection import LedgerProjection
from duemq_migration.ownership import projection
from duemq_migration.ownership.owners import Owners
from duemq_migration.ownership.states import LevelState, MigrationEvent, State
from duemq_migration.steps.drain import Drain, DrainStep
from duemq_migration.steps.return_units import RoutedReturn, UnitReturn
from duemq_migration.steps.router import Router
from message_store.replication.acknowledgement import Missing
from message_store.store import MessageStore

log = logging.getLogger(__name__)
RECOVERED_BY: Final = "recovery"


class Migrations:
    """All levels of one store. Belongs to the event loop's thread.

    Args:
        on_change: Called with changed ledger records.
    Attributes:
        blocked_by: By level, the reason why the last step moved no message although some remain.
    """

    def __init__(
        self, store: MessageStore, clock: Clock, router: Router, *, on_change: Callable[..., None]
    ) -> None:
        self._store, self._clock, self.router, self._on_change = store, clock, router, on_change
        self._written = self._load(store)
        self._writing = asyncio.Lock()
        self._read_to = ownership.bounds(store)[1]  # queue offset of the next record to apply
        self.journal = projection.restore(store)
        removed = ownership.bounds(store)[0] or (
            self._written.levels and not self._written.next_offset
        )
        self.ledger = LedgerProjection(self._written if removed else None)
        self.blocked_by: dict[int, str] = {}
        self._drain: Drain | None = None
        for level in self.journal.levels.values():
            router.set_route(level)
        for entry in ownership.read(store, quiet=True):
            self.ledger.apply(entry)

    def bind(self, owners: Owners) -> None:
        """Use other owners from now on."""
        self._owners = owners
        parts = owners.levels, owners.timers, self._store, self._clock
        self._drain = Drain(*parts, wake=owners.timers.wake)
        self._return_units = UnitReturn(*parts)
        self._routed_return = RoutedReturn(
            self.router, owners.timers, self._store, self._clock, wake=owners.levels.wake
        )

    # -- state --------------------------------------------------------------------------------

    def state_of(self, level: int) -> LevelState:
        """Return the state of a level; a level that was never migrated is PLANNED."""
        level_projection = self.journal.levels.get(level)
        if level_projection is None or not level_projection.state:
            return LevelState(level)
        return LevelState(
            level,
            State(level_projection.state),
            paused=bool(level_projection.why),
            cause=level_projection.why,
        )

    @property
    def active_levels(self) -> list[int]:
        """Levels that take steps now."""
        return [level for level in sorted(self.journal.levels) if self.state_of(level).is_working]

    def remaining(self, level: int) -> int:
        """Return the maximum number of messages that are still to be moved."""
        state, owners = self.state_of(level).state, self._owners
        source_level = owners.levels.levels.get(level)
        if state in (State.ROUTING, State.DRAINING) and source_level is not None:
            return source_level.cursor.pending
        if state is State.ROLLING_BACK:
            return sum(end - first for first, end in self._return_units.remaining(level))
        return 0

    # -- commands -----------------------------------------------------------------------------

    def start(
        self, levels: Iterable[int], rules: Mapping[str, int], *, migration: str, operator: str
    ) -> None:
        """Route levels from now on, and begin to drain them.

        Raises:
            IllegalMove: One of them is already migrated; nothing has changed.
            OwnershipRefused: The store is not writable; levels before this one have started.
        """
        requested = list(levels)
        for level in requested:
            current = self.state_of(level)
            (LevelState(level) if current.is_rolled_back else current).after(MigrationEvent.START)
        for level in requested:
            owners = self._owners
            self.router.begin(
                self._store,
                owners.queues,
                owners.timers,
                level,
                rules,
                self._clock.now_ms(),
                migration=migration,
            )
            self._append_state(
                level, State.PLANNED, State.ROUTING, migration=migration, operator=operator
            )

    def pause(self, level: int, cause: str, *, operator: str) -> None:
        """Pause a level: no steps until it is resumed; its new messages stay routed."""
        state = self.state_of(level).pause(cause).state
        self._append_state(level, state, state, operator=operator, reason=cause or "paused")

    def resume(self, level: int, *, operator: str) -> None:
        """Continue a paused level; do nothing if it is not paused."""
        current = self.state_of(level)
        if current.resume() != current:
            self._append_state(level, current.state, current.state, operator=operator)

    def roll_back(self, level: int, *, operator: str) -> None:
        """Begin to return all messages of a level."""
        if level not in self.journal.levels:
            raise UsageError(f"level {level} was never migrated: there is nothing to roll back")
        self._move(level, MigrationEvent.ROLL_BACK, operator=operator)

    def verified(self, level: int) -> None:
        """Finish a level whose verification found no difference."""
        self._move(level, MigrationEvent.VERIFIED)

    async def wait_confirmed(self) -> Missing | None:
        """Wait until all records are confirmed; return what is missing after the time limits."""
        return await self._store.wait_confirmed(self._store.max_offset)

    # -- steps --------------------------------------------------------------------------------

    def step(self, level: int, units_max: int) -> DrainStep:
        """Take one step of a level; do nothing for a level in VERIFYING.

        Raises:
            OwnershipRefused: The store is not writable; nothing has changed.
        """
        assert self._drain is not None
        current = self.state_of(level)
        if not current.is_working or current.state is State.VERIFYING:
            return DrainStep()
        step = self._step(level, current.state, units_max)
        self.catch_up()
        self.blocked_by[level] = step.blocked_by
        return step

    def _step(self, level: int, state: State, units_max: int) -> DrainStep:
        assert self._drain is not None
        name = self.journal.levels[level].migration
        if state is State.ROUTING:
            self._move(level, MigrationEvent.FENCED)
        elif state is State.DRAINING:
            if not self.is_drained(level):
                return self._drain.step(level, units_max, migration=name)
            self._move(level, MigrationEvent.DRAINED)
        elif not self._return_units.is_finished(level):
            return self._return_units.step(level, units_max, migration=name)
        elif not self._routed_return.is_finished(level):
            return self._routed_return.step(level, units_max, migration=name)
        else:
            self._move(level, MigrationEvent.RETURNED)
            self._routed_return.forget(level)
        return DrainStep()

    def is_drained(self, level: int) -> bool:
        """Return whether no message of the level before the fence is pending or in flight.

        Messages that cannot be routed (see `duemq_migration.steps.router`) still go to the level,
        after the fence.
        """
        if self._owners.timers.transfers.incomplete:
            return False
        source_level = self._owners.levels.levels.get(level)
        if source_level is None or not source_level.cursor.undelivered:
            return True
        return bool(source_level.cursor.first_undelivered >= self.journal.levels[level].fence)

    def cover(self) -> None:
        """Advance Apache's offsets of the levels to the timers' last checkpoint."""
        assert self._drain is not None
        self._drain.cover(self._owners.keeper)

    def append_missing_state(self) -> None:
        """Append the missing state record of a start that a crash or a full disk interrupted.

        New messages of such a level are timers already, so the migration continues.

        Raises:
            OwnershipRefused: The store is not writable; the next call tries again.
        """
        self.catch_up()
        for level in list(self.journal.levels):
            level_projection = self.journal.levels[level]
            if level_projection.routed and level_projection.state in ("", State.ROLLED_BACK):
                self._append_state(level, State.PLANNED, State.ROUTING, operator=RECOVERED_BY)

    # -- journal ------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Apply the new records of the journal; report malformed ones once."""
        start, self._read_to = self._read_to, ownership.bounds(self._store)[1]
        for entry in ownership.read(self._store, start):
            self.journal = self.journal.after(entry)
            self._on_change(*self.ledger.apply(entry))

    async def write(self) -> None:
        """Write the projection in a thread, if the log is synced up to its offset.

        Raises:
            OSError: The file cannot be written; the old one is unchanged.
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

    def _move(self, level: int, event: MigrationEvent, *, operator: str = "") -> None:
        before = self.state_of(level)
        self._append_state(level, before.state, before.after(event).state, operator=operator)

    def _append_state(
        self,
        level: int,
        source: State,
        target: State,
        *,
        migration: str = "",
        operator: str = "",
        reason: str = "",
    ) -> None:
        name = migration or self.journal.levels[level].migration
        record = StateRecord(
            migration=name,
            level=level,
            source=source.value,
            target=target.value,
            operator=operator,
            why=reason,
        )
        ownership.append(self._store, record, self._clock.now_ms())
        self.blocked_by.pop(level, None)
        self.catch_up()
        log.info(
            "migration %s: level %d is %s%s", name, level, target, f" ({reason})" if reason else ""
        )

    @staticmethod
    def _load(store: MessageStore) -> JournalProjection:
        try:
            return projection.load(store)
        except CorruptStore as error:
            log.error("%s The projection is rebuilt from the retained log.", error)
            return JournalProjection()
