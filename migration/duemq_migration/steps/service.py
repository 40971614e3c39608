"""Migration service: runs steps while lateness and rate allow it.

    turn:  throttle: size and time --> one step of one level, levels in turn
    every 100 ms           lateness of the deliveries since then --> throttle
    every 5 s, if active   a sample for the ledger; the projection of the ownership journal is saved

A level in VERIFYING is counted in pieces between other work, and takes no steps until the count
ends. A blocked step (full disk, missing checkpoint) is reported and tried again. The service itself
pauses a level only if a verification finds a difference; the cause is in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from duemq_common.clock import Clock, Signal
from duemq_common.errors import OwnershipRefused
from duemq_common.ledger.writer import LedgerWriter
from duemq_migration.config import MigrationConfig
from duemq_migration.ledger.records import SampleRecord, VerificationRecord
from duemq_migration.ownership.moves import Migrations
from duemq_migration.ownership.owners import NoOwners, Owners
from duemq_migration.ownership.states import State
from duemq_migration.steps.drain import DrainStep
from duemq_migration.steps.throttle import Interval, IntervalLateness, Throttle
from duemq_migration.steps.verification import Verification, Verified
from message_store.kernels import registry

log = logging.getLogger(__name__)
OBSERVE_MS: Final = 100
RETURNED_MAX: Final = 524_288  # maximum returned timers in memory until the next checkpoint
SAMPLE_MS: Final = 5_000
AGAIN_MS: Final = 200
"""Pause before a blocked step is tried again."""
IDLE_MS: Final = 1_000
COUNT_UNITS: Final = 2_048
"""Maximum units in one piece of a count: about 2 ms."""
KERNELS = "migration"  # group of kernels for a first step
YIELDS: Final = 4
"""Turns of the event loop between two steps, for requests."""


class SampleCounters(Struct):
    """Counters since the last sample."""

    since_ms: int
    moved: int = 0
    rate_per_s: float = 0.0
    late: IntervalLateness | None = None


class MigrationService:
    """Service that runs the migrations of one broker. Belongs to the event loop's thread."""

    def __init__(
        self,
        migrations: Migrations,
        ledger: LedgerWriter,
        clock: Clock,
        config: MigrationConfig,
        find: Callable[[], Owners | None],
    ) -> None:
        self.migrations, self.ledger, self._clock, self._find = migrations, ledger, clock, find
        now_ms = clock.now_ms()
        self.throttle = Throttle(config.limits, now_ms=now_ms)
        self.config = config
        self.pace = SampleCounters(now_ms)
        self.verified: dict[int, Verified] = {}
        self.owners: Owners | None = None
        self._wake, self._stop, self._stopping = Signal(), asyncio.Event(), False
        self._observed_ms = now_ms
        self._interval: Interval | None = None
        self._sampling: Interval | None = None
        self._turn, self._preloaded = 0, False
        self._last: dict[int, State] = {}  # states of the levels that took steps in the last turn
        self._counted: Counter[int] = Counter()  # levels that take no steps while they are counted

    def reconfigure(self, config: MigrationConfig) -> None:
        """Apply new limits from the next turn on."""
        self.config = config
        self.throttle.change(config.limits)
        self._wake.set()

    def owners_or_raise(self) -> Owners:
        """Return both owners.

        Raises:
            NoOwners: They do not run now.
        """
        owners = self._find()
        if owners is None:
            raise NoOwners(
                "levels and timers do not run now: try again after the start of the broker"
            )
        if self.owners is None:
            self._bind(owners)
        return owners

    def _bind(self, owners: Owners) -> None:
        self.owners = owners
        self.migrations.bind(owners)
        self._interval = Interval(owners.lateness())
        self._sampling = Interval(owners.lateness())

    def wake(self) -> None:
        """Wake the loop after a change."""
        self._wake.set()

    def stop(self) -> None:
        """Make `run` return after the current step."""
        self._stopping = True
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Run migrations until stopped."""
        if self.migrations.journal.levels:
            await self.preload_kernels()
        while not self._stopping:
            self._wake.clear()
            at_ms = await self.turn()
            if self._stopping:
                return
            await self._sleep(at_ms, self._wake)

    async def preload_kernels(self) -> None:
        """Load the kernels of a first step; a failure only makes that step slower."""
        if not self._preloaded:
            self._preloaded = True
            try:
                await asyncio.to_thread(registry.load, KERNELS)
            except Exception:
                log.exception("the kernels of migration are not preloaded")

    async def _sleep(self, at_ms: int, signal: asyncio.Event) -> None:
        """Wait until a time, or until an event is set."""
        if at_ms <= self._clock.now_ms():
            for _ in range(YIELDS):
                await asyncio.sleep(0)
        else:
            await self._clock.wait(signal, until_ms=at_ms)

    async def turn(self) -> int:
        """Take a step if one is allowed; return the earliest time of the next one."""
        now_ms = self._clock.now_ms()
        try:
            self.owners_or_raise()
        except NoOwners:
            return now_ms + AGAIN_MS
        self.migrations.cover()
        self._append_missing_state()
        self._observe(now_ms)
        levels = [n for n in self.migrations.active_levels if not self._counted[n]]
        self._last = {n: state for n, state in self._last.items() if n in levels}
        if not levels:
            return now_ms + IDLE_MS
        level = levels[self._turn % len(levels)]
        state = self.migrations.state_of(level).state
        if self._last.get(level) is not state:
            self._last[level] = state
            self.throttle.begin()
        if state is State.VERIFYING:
            self._turn += 1
            await self._verify_and_move(level)
            return now_ms
        allowed = self.throttle.next(now_ms)
        if not allowed.units:
            return allowed.at_ms
        if self._is_full():
            await self.owners_or_raise().keeper.persist()
            waits = self._find() is None or self._is_full()
            return self._clock.now_ms() + (AGAIN_MS if waits else 0)
        self._turn += 1
        step = self._step(level, allowed.units)
        self.throttle.count_step(step.processed, now_ms, self._clock.now_ms())
        self.pace.moved += step.moved
        all_blocked = all(self.migrations.blocked_by.get(n) for n in levels)
        return now_ms + AGAIN_MS if step.blocked_by and all_blocked else now_ms

    def _is_full(self) -> bool:
        """Whether too many returned timers are in memory until the next checkpoint."""
        return self.owners_or_raise().timers.settled_timers.returned_count >= RETURNED_MAX

    def _append_missing_state(self) -> None:
        try:
            self.migrations.append_missing_state()
        except OwnershipRefused as error:
            log.debug("a start cannot be finished yet: %s", error)

    def _step(self, level: int, units: int) -> DrainStep:
        try:
            return self.migrations.step(level, units)
        except OwnershipRefused as error:
            step = DrainStep(blocked_by=f"the store is not writable: {error}")
            self.migrations.blocked_by[level] = step.blocked_by
            return step

    # -- verification -------------------------------------------------------------------------

    def piece(self) -> int:
        """Return the maximum units of the next piece of a count."""
        return min(self.throttle.batch, COUNT_UNITS)

    async def throttled(self, pieces: Iterable[int]) -> None:
        """Count piece by piece, at the pace that the throttle allows.

        Raises:
            NoOwners: The broker stops.
        """
        self.throttle.begin()
        began_ms = self._clock.now_ms()
        for _ in pieces:
            now_ms = self._clock.now_ms()
            self.throttle.count_step(0, began_ms, now_ms)
            at_ms = self.throttle.pace(now_ms).at_ms
            if any(not self._counted[level] for level in self.migrations.active_levels):
                at_ms += at_ms - now_ms  # a step of another level comes first
            while True:
                await self._sleep(at_ms, self._stop)
                if self._stopping or self._find() is None:  # the owners stop first
                    raise NoOwners("the broker stops: count again after its next start")
                now_ms = began_ms = self._clock.now_ms()
                self._observe(now_ms)
                allowed = self.throttle.pace(now_ms)
                if allowed.units:
                    break
                at_ms = allowed.at_ms

    async def verify(self, level: int) -> Verified:
        """Count the messages of a level at both owners, in pieces; the level takes no steps."""
        owners, journal = self.owners_or_raise(), self.migrations.journal.levels[level]
        work = Verification(owners.levels, owners.timers, owners.store, level, journal)
        self._counted[level] += 1
        try:
            await self.throttled(work.pieces(self.piece))
        finally:
            self._counted[level] -= 1
            self._wake.set()
        assert work.result is not None
        self.verified[level] = work.result
        self.ledger.write(record_of(work.result, journal.migration, self._clock.now_ms()))
        return work.result

    async def _verify_and_move(self, level: int) -> None:
        try:
            verified = await self.verify(level)
        except NoOwners:
            return
        current = self.migrations.state_of(level)
        if current.state is not State.VERIFYING or not current.is_working:
            return  # another command changed the state during the count
        try:
            if verified.is_right:
                self.migrations.verified(level)
            else:
                self.migrations.pause(level, difference(verified), operator="verification")
        except OwnershipRefused as error:
            self.migrations.blocked_by[level] = f"the store is not writable: {error}"

    # -- figures ------------------------------------------------------------------------------

    def _observe(self, now_ms: int) -> None:
        assert self.owners is not None
        assert self._interval is not None
        if abs(now_ms - self._observed_ms) >= OBSERVE_MS:
            self._observed_ms = now_ms
            since = self._interval.advance(self.owners.lateness())
            self.throttle.observe(since)
        if abs(now_ms - self.pace.since_ms) >= SAMPLE_MS:
            self._sample(now_ms)

    def _sample(self, now_ms: int) -> None:
        assert self.owners is not None
        assert self._sampling is not None
        passed_ms = max(now_ms - self.pace.since_ms, 1)
        late = self._sampling.advance(self.owners.lateness())
        rate = self.pace.moved * 1_000 / passed_ms
        self.pace = SampleCounters(now_ms, rate_per_s=rate, late=late)
        for name in self._active_runs():
            self.ledger.write(
                SampleRecord(
                    migration_id=name,
                    at_ms=now_ms,
                    rate_per_s=rate,
                    delivered=late.delivered,
                    late_p50_ms=late.quantile_ms(0.5),
                    late_p99_ms=late.quantile_ms(0.99),
                    late_max_ms=late.quantile_ms(1.0),
                    batch_units=self.throttle.batch,
                    pause_ms=self.throttle.pause_ms,
                )
            )

    def _active_runs(self) -> Iterator[str]:
        journal = self.migrations.journal.levels
        yield from sorted({journal[level].migration for level in self.migrations.active_levels})

    async def write(self) -> None:
        """Save the projection of the ownership journal if it changed."""
        try:
            await self.migrations.write()
        except OSError as error:
            log.error("the projection of the ownership journal cannot be written: %s", error)


def difference(verified: Verified) -> str:
    """Return the difference that a verification found, or an empty text."""
    if verified.is_right:
        return ""
    rest, there = verified.expected, verified.actual
    return (
        f"both sides differ: the ownership journal has {rest.count} transferred messages, the "
        f"timers own or settled {there.count}; checksums {rest.sum:016x} and {there.sum:016x}"
    )


def record_of(verified: Verified, migration: str, at_ms: int) -> VerificationRecord:
    """Return the ledger's record of a verification."""
    rest, there = verified.expected, verified.actual
    return VerificationRecord(
        migration_id=migration,
        level=verified.level,
        at_ms=at_ms,
        levels_count=rest.count,
        levels_checksum=rest.sum,
        timers_count=there.count,
        timers_checksum=there.sum,
        text=difference(verified),
    )


def plain(verified: Verified) -> dict[str, object]:
    """Return a verification as a dictionary of numbers."""
    names = (
        "level_pending",
        "timers_pending",
        "settled",
        "expected",
        "transferred",
        "returned",
        "gone",
    )
    return {
        "level": verified.level,
        "right": verified.is_right,
        "text": difference(verified),
        "removed": verified.removed,
        **{name: getattr(verified, name).count for name in names},
        "checksums": {name: f"{getattr(verified, name).sum:016x}" for name in names},
    }
