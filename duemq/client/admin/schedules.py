"""Recurring schedules of a cluster of DueMQ brokers: create, list, change, delete.

A schedule is on one broker, among those with queues of its topic: the one that the name selects.
"""

from __future__ import annotations

import asyncio
import zlib
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from delayed_delivery.steps import at_once
from duemq.client.admin.cluster import BrokerMember, ClusterAdmin, converted, parsed
from duemq.client.errors import NoRoute, Refused, Unsupported
from duemq.client.message import milliseconds
from duemq.net.view_names import SCHEDULE_VIEW, SCHEDULES_LIST_VIEW
from duemq_common.codes import RequestCode, ResponseCode
from recurring_schedules.backfill import times_between
from recurring_schedules.definition import Definition as Definition
from recurring_schedules.definition import InvalidDefinition, check
from recurring_schedules.occurrences import check_fires, next_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAGE_COUNT: Final = 1_000
BACKFILL_TIMEOUT_S: Final = 60.0  # the broker searches for the times between its other work
FEATURE: Final = "recurring schedules, which only DueMQ brokers have"


class ChangedSchedule(msgspec.Struct):
    """Result of a change; times are ms since the epoch.

    Attributes:
        state: State after the change.
        planned_ms, next_ms: Planned time of the pending occurrence, and of the one after it.
            0: none is pending, as long as the next time is beyond `timerMaxDelaySec`.
        revision: Number of the change.
        created: Whether the schedule did not exist before.
        appended: Number of messages that were sent; -1: the change sends none.
    """

    state: str = ""
    planned_ms: int = 0
    next_ms: int = 0
    revision: int = 0
    created: bool = False
    appended: int = -1


class ScheduleView(msgspec.Struct, kw_only=True):
    """Schedule at its broker; times are ms since the epoch.

    Attributes:
        note: Reason of a pause.
        planned_ms, next_ms: Planned time of the pending occurrence, and of the one after it.
            0: none is pending, as long as the next time is beyond `timerMaxDelaySec`.
        now_ms: Time of the broker.
        runs: Next planned times.
        broker: Name of the broker.
    """

    definition: Definition
    state: str
    note: str
    revision: int
    planned_ms: int
    next_ms: int
    now_ms: int
    runs: tuple[int, ...] = ()
    broker: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether there is no further occurrence."""
        return self.state == "active" and not self.next_ms and self.planned_ms < self.now_ms


class ScheduleExists(Refused):
    """Refusal of a definition because the schedule has another one."""


class _SchedulePage(msgspec.Struct):
    """Page of the list; `after` is -1 in the last one."""

    schedules: list[ScheduleView]
    after: int


class SchedulesAdmin(ClusterAdmin):
    """Requests about recurring schedules."""

    async def create_schedule(self, definition: Definition) -> ChangedSchedule:
        """Create a schedule; one with the same definition stays as it is.

        Raises:
            InvalidDefinition: The definition cannot be a schedule.
            ScheduleExists: A schedule of this name has another definition.
            NoRoute: The topic has no writable queue.
            Unsupported: The broker of the schedule is not a DueMQ broker.
        """
        check(definition)
        other = await self._find(definition.name, 1)
        if other is not None and other[1].definition.topic != definition.topic:
            text = f"schedule {definition.name} exists with another definition"
            raise ScheduleExists(ResponseCode.INVALID_PARAMETER, text, other[0])
        addresses = (await self.client.route(definition.topic)).masters()
        if not addresses:
            raise NoRoute(f"topic {definition.topic} has no writable queue")
        address = addresses[zlib.crc32(definition.name.encode()) % len(addresses)]
        fields: dict[str, object] = {"action": "create", "topic": definition.topic}
        try:
            return await self._change(address, fields, msgspec.json.encode(definition))
        except Refused as error:
            if other is None or error.code != ResponseCode.INVALID_PARAMETER:
                raise
            raise ScheduleExists(error.code, error.remark, address) from error

    async def schedules(self, topic: str = "", *, count: int = 0) -> list[ScheduleView]:
        """Return the schedules, of one topic if it is given, broker by broker.

        Args:
            count: Maximum number; 0: all.
        Raises:
            Unsupported: A broker is not a DueMQ broker.
        """
        schedules: list[ScheduleView] = []
        for master in await self.masters():
            after, is_last = -1, False
            while not is_last and not 0 < count <= len(schedules):
                fields = {"after": after, "count": PAGE_COUNT, "topic": topic}
                view = await self.view(master.address, SCHEDULES_LIST_VIEW, **fields)
                page = converted(view, _SchedulePage)
                schedules += _at(master.name, page.schedules)
                after, is_last = page.after, page.after < 0
        return schedules[:count] if count else schedules

    async def schedule(self, name: str, *, runs: int = 1) -> ScheduleView:
        """Return a schedule and its next planned times.

        Raises:
            Refused: There is no such schedule.
        """
        return (await self._existing(name, runs))[1]

    async def pause_schedule(self, name: str, note: str = "") -> ChangedSchedule:
        """Stop a schedule until it is resumed; its pending occurrence is cancelled."""
        return await self._change_existing(name, "pause", note=note)

    async def resume_schedule(self, name: str, note: str = "") -> ChangedSchedule:
        """Continue a paused schedule with its next time; times of the pause are skipped."""
        return await self._change_existing(name, "resume", note=note)

    async def delete_schedule(self, name: str) -> ChangedSchedule:
        """Delete a schedule; its pending occurrence is cancelled."""
        return await self._change_existing(name, "delete")

    async def trigger_schedule(self, name: str) -> ChangedSchedule:
        """Send the message of a schedule now, in addition to its occurrences."""
        return await self._change_existing(name, "trigger")

    async def backfill_schedule(
        self, name: str, since: datetime, until: datetime
    ) -> ChangedSchedule:
        """Send the messages of the planned times in [since, until), which are in the past."""
        range_ms = {"from_ms": milliseconds(since), "until_ms": milliseconds(until)}
        return await self._change_existing(
            name, "backfill", timeout_s=BACKFILL_TIMEOUT_S, **range_ms
        )

    async def _change_existing(
        self, name: str, action: str, *, timeout_s: float | None = None, **fields: str | int
    ) -> ChangedSchedule:
        address, schedule = await self._existing(name, 1)
        topic = schedule.definition.topic
        change: dict[str, object] = {"action": action, "name": name, "topic": topic, **fields}
        return await self._change(address, change, timeout_s=timeout_s)

    async def _change(
        self,
        address: str,
        fields: dict[str, object],
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> ChangedSchedule:
        response = await self.ask_broker(
            address,
            RequestCode.CHANGE_SCHEDULE,
            fields,
            body,
            feature=FEATURE,
            timeout_s=timeout_s,
        )
        return parsed(response, ChangedSchedule)

    async def _existing(self, name: str, runs: int) -> tuple[str, ScheduleView]:
        schedule = await self._find(name, runs)
        if schedule is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"there is no schedule {name!r}")
        return schedule

    async def _find(self, name: str, runs: int) -> tuple[str, ScheduleView] | None:
        """Return the address of the broker that has a schedule, and the schedule.

        Raises:
            ClientError: No broker is known to have it, and one did not say.
        """
        masters = await self.masters()
        views = await asyncio.gather(
            *(self.schedule_at(master, name, runs=runs) for master in masters),
            return_exceptions=True,
        )
        for master, view in zip(masters, views, strict=True):
            if isinstance(view, ScheduleView):
                return master.address, view
        for view in views:
            if isinstance(view, BaseException) and not isinstance(view, Unsupported):
                raise view
        return None

    async def schedule_at(
        self, master: BrokerMember, name: str, *, runs: int = 1
    ) -> ScheduleView | None:
        """Return a schedule of one broker; None: the broker does not have it.

        Raises:
            Unsupported: The broker is not a DueMQ broker.
        """
        try:
            view = await self.view(master.address, SCHEDULE_VIEW, schedule=name, runs=runs)
        except Refused as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None
        schedule = converted(view, ScheduleView)
        schedule.broker = master.name
        return schedule


def definition_from(fields: Mapping[str, object]) -> Definition:
    """Return a definition with the named attributes.

    Raises:
        InvalidDefinition: A value has another type.
    """
    try:
        return msgspec.convert(fields, Definition)
    except msgspec.ValidationError as error:
        raise InvalidDefinition(str(error)) from None


def next_runs(definition: Definition, now_ms: int, count: int) -> list[int]:
    """Return the next planned times of a definition, in ms since the epoch, as a broker plans them.

    Raises:
        InvalidDefinition: The definition cannot be a schedule.
    """
    check(definition)
    runs = [check_fires(definition, now_ms)]
    while len(runs) < count and (planned_ms := next_after(definition, runs[-1])) is not None:
        runs.append(planned_ms)
    return runs


def backfill_count(definition: Definition, from_ms: int, until_ms: int) -> int:
    """Return the number of messages of a backfill.

    Raises:
        InvalidDefinition: There are more than a broker sends.
    """
    return len(at_once(times_between(definition, from_ms, until_ms)))


def _at(broker: str, schedules: Iterable[ScheduleView]) -> Iterable[ScheduleView]:
    for schedule in schedules:
        schedule.broker = broker
        yield schedule
