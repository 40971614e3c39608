"""Operator commands: checked, refused with a remedy, or executed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import msgspec

from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import DueMQError, RequestError, UsageError
from duemq_common.ledger.identity import store_id
from duemq_common.request import Request, Response
from duemq_migration.ledger.records import LIVE, MigrationRecord
from duemq_migration.ownership.states import (
    MOVES,
    ROLL_BACK_MEANS,
    WORKING,
    LevelState,
    MigrationEvent,
    State,
)
from duemq_migration.plans.counting import PlanCount
from duemq_migration.plans.plan import Plan, check, from_json, new_id, to_json
from duemq_migration.plans.plan_files import PlanFiles
from duemq_migration.requests import Done, MigrationRequest, command_of
from duemq_migration.steps.service import MigrationService, difference, plain
from duemq_migration.views import status_view

STEPPING = ("plan", "start", "verify", "rollback")
CHANGING = ("start", "pause", "resume", "rollback")


class Operations:
    """Handler of request 9015. Belongs to the event loop's thread.

    Args:
        config_directory: `<store>/config`.
    """

    def __init__(
        self,
        service: MigrationService,
        clock: Clock,
        config_directory: Path,
    ) -> None:
        self._service, self._clock = service, clock
        self._config_directory = config_directory
        self._plans = PlanFiles(config_directory)
        self._one_at_a_time = asyncio.Lock()

    async def response(self, request: Request) -> Response:
        """Execute the command of a request.

        Raises:
            RequestError: The command is malformed, cannot be executed now, or its records are not
                confirmed in time.
        """
        command = command_of(request)
        try:
            if command.action == "status":
                return Response(body=msgspec.json.encode(status_view(self._service)))
            self._service.owners_or_raise()
            if command.action in STEPPING:
                await self._service.preload_kernels()
            # A level takes no steps during a count, so a pause need not wait for the count.
            counts = command.action == "verify"
            async with nullcontext() if counts else self._one_at_a_time:
                done = await getattr(self, f"_{command.action}")(command)
        except RequestError:
            raise
        except (DueMQError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._service.wake()
        if command.action in CHANGING and not command.dry_run:
            await self._confirmed(command.action)
        return Response(body=done.encoded())

    async def _confirmed(self, action: str) -> None:
        """Wait until the records of a command are on the disk and on the required replicas."""
        if missing := await self._service.migrations.wait_confirmed():
            raise RequestError(
                missing.code,
                f"the {action} is in the log, but {missing.text}: see duemq migrate status",
            )

    # -- plan, start ----------------------------------------------------------------------------

    async def _plan(self, command: MigrationRequest) -> Done:
        plan = await self._count(command)
        if not command.dry_run:
            await asyncio.to_thread(self._plans.save, plan)
            self._service.ledger.write(plan)
        return Done(
            action="plan",
            dry_run=command.dry_run,
            levels=[n.level for n in plan.levels],
            more={"plan": msgspec.json.decode(to_json(plan))},
        )

    async def _count(self, command: MigrationRequest) -> Plan:
        owners, now_ms = self._service.owners_or_raise(), self._clock.now_ms()
        levels = _checked_levels(command.levels or sorted(owners.delays_ms), owners.delays_ms)
        count = PlanCount(owners, levels, now_ms, self._service.throttle.limits.rate_per_s)
        await self._service.throttled(count.pieces(self._service.piece))
        return count.plan(
            plan_id=new_id("plan", now_ms, secrets.token_bytes(2)),
            store_id=store_id(self._config_directory),
            made_by=command.operator,
        )

    async def _start(self, command: MigrationRequest) -> Done:
        plan = await self._planned(command)
        owners, now_ms = self._service.owners_or_raise(), self._clock.now_ms()
        levels = sorted(set(command.levels)) or [item.level for item in plan.levels]
        check(
            plan,
            store_id=store_id(self._config_directory),
            delays_ms=owners.delays_ms,
            now_ms=now_ms,
            levels=levels,
        )
        migrations = self._service.migrations
        if not command.levels:  # skip levels that are already migrated
            levels = [n for n in levels if self._can(n, MigrationEvent.START)]
        for level in levels:
            current = migrations.state_of(level)
            if not current.is_rolled_back:
                current.after(MigrationEvent.START)
        if not levels:
            raise UsageError(
                "every level of this plan is migrated already: see duemq migrate status"
            )
        run = new_id("run", now_ms, secrets.token_bytes(2))
        if not command.dry_run:
            await self._service.ledger.opened()
            self._service.ledger.write(
                plan,
                MigrationRecord(
                    migration_id=run,
                    plan_id=plan.plan_id,
                    mode=LIVE,
                    started_ms=now_ms,
                    started_by=command.operator,
                ),
            )
            migrations.start(levels, command.rules, migration=run, operator=command.operator)
        return Done(
            action="start",
            dry_run=command.dry_run,
            migration="" if command.dry_run else run,
            levels=levels,
            more={"plan": msgspec.json.decode(to_json(plan))},
        )

    async def _planned(self, command: MigrationRequest) -> Plan:
        if command.plan_id:
            return self._plans.load(command.plan_id)
        if bytes(command.plan) != b"null":
            return from_json(bytes(command.plan), source="the plan that was sent")
        return await self._count(command)

    # -- running migrations ----------------------------------------------------------------------

    async def _pause(self, command: MigrationRequest) -> Done:
        levels = self._chosen(command, lambda level: self._state_of(level).is_working)
        cause = command.cause or (
            f"requested by {command.operator}" if command.operator else "requested by an operator"
        )
        for level in levels:
            self._state_of(level).pause(cause)
        if not command.dry_run:
            for level in levels:
                self._service.migrations.pause(level, cause, operator=command.operator)
        return Done(action="pause", dry_run=command.dry_run, levels=levels)

    async def _resume(self, command: MigrationRequest) -> Done:
        levels = self._chosen(command, lambda level: self._state_of(level).paused)
        for level in levels:
            self._state_of(level).resume()
        if not command.dry_run:
            for level in levels:
                self._service.migrations.resume(level, operator=command.operator)
        return Done(action="resume", dry_run=command.dry_run, levels=levels)

    async def _rollback(self, command: MigrationRequest) -> Done:
        levels = self._chosen(command, lambda level: self._can(level, MigrationEvent.ROLL_BACK))
        remarks = {
            level: ROLL_BACK_MEANS[self._state_of(level).state]
            for level in levels
            if self._can(level, MigrationEvent.ROLL_BACK)
        }
        for level in levels:
            self._state_of(level).after(MigrationEvent.ROLL_BACK)
        if not command.dry_run:
            for level in levels:
                self._service.migrations.roll_back(level, operator=command.operator)
        return Done(action="rollback", dry_run=command.dry_run, levels=levels, remarks=remarks)

    async def _verify(self, command: MigrationRequest) -> Done:
        allowed = (State.DRAINING, State.VERIFYING, State.DONE)
        levels = self._chosen(command, lambda level: self._state_of(level).state in allowed)
        verifications = [await self._service.verify(level) for level in levels]
        return Done(
            action="verify",
            levels=levels,
            remarks={item.level: difference(item) for item in verifications},
            more={
                "right": all(item.is_right for item in verifications),
                "verified": [plain(item) for item in verifications],
            },
        )

    def _chosen(self, command: MigrationRequest, fits: Callable[[int], bool]) -> list[int]:
        """Return the levels of a command; if it names none, all levels that it applies to."""
        owned = self._service.migrations.journal.levels
        if not command.levels:
            return [level for level in sorted(owned) if fits(level)]
        return _checked_levels(command.levels, owned)

    def _state_of(self, level: int) -> LevelState:
        return self._service.migrations.state_of(level)

    def _can(self, level: int, event: MigrationEvent) -> bool:
        current = self._state_of(level)
        if event is MigrationEvent.START and current.is_rolled_back:
            return True
        return (current.state, event) in MOVES


def _checked_levels(levels: Iterable[int], numbers: Iterable[int]) -> list[int]:
    """Return levels in order, without repetitions.

    Raises:
        UsageError: A level is not among the known ones.
    """
    chosen, there = sorted(set(levels)), set(numbers)
    unknown = [str(level) for level in chosen if level not in there]
    if unknown:
        names = ", ".join(str(level) for level in sorted(there)) or "none"
        raise UsageError(f"no level {', '.join(unknown)} here; there are: {names}")
    return chosen


assert set(ROLL_BACK_MEANS) >= WORKING - {State.ROLLING_BACK}
