"""Planned times of a schedule: a pure function of its definition and a time.

Cron expressions follow Debian's cron, by cronsim. An expression of 5 fields whose minute and hour
are not `*` fires once on each matching day: in the gap of a DST change at the first instant after
the gap, in a repeated hour at the first of both times. Other expressions match each real minute or
second: nothing in the gap, twice in a repeated hour. Intervals are real time and have no zone.
Several expressions fire at the times of any of them; `every_days` keeps every n-th date.
A search for the next time does a bounded amount of work, whatever the definition, in bounded steps,
because each delays deliveries: a client chooses the definition. See
docs/decisions/0058-recurring-schedules.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from delayed_delivery.steps import Steps, at_once
from recurring_schedules.definition import (
    ALIASES,
    EXCLUSIONS_MAX,
    TIME_MS_MAX,
    Definition,
    InvalidDefinition,
    split_expressions,
    zone_of,
)

if TYPE_CHECKING:
    from cronsim import CronSim

EXCLUDED_MAX: Final = 10_000
"""Maximum number of consecutive exclusions; a schedule with more has ended."""
WORK_MAX: Final = 400_000
"""Maximum work of a search, about 1 us a unit; a schedule that needs more has ended."""
STEP_WORK: Final = 4_000
"""Work of a step, after which other work runs; one search of an expression may exceed it."""
PARSE_WORK: Final = 32
"""Work of one search of a cron expression, plus a unit for each character and each passed day."""
DATE_WORK: Final = 8
"""Work of the parsing of a date."""
SEARCHED_DAYS: Final = 50 * 366  # by cronsim, before it gives up
DAY_MS: Final = 86_400_000
FIELDS_WITH_SECONDS: Final = 6
FIRST_MONDAY: Final = date(1970, 1, 5)
"""Date from which `every_days` counts without a start."""


class StepWork:
    """Work of the current step.

    Attributes:
        units: Work since the start of the step.
    """

    def __init__(self) -> None:
        self.units = 0

    @property
    def is_done(self) -> bool:
        return self.units >= STEP_WORK


def next_after(definition: Definition, after_ms: int) -> int | None:
    """Return the first planned time after a time, None if there is none."""
    return at_once(search_after(definition, after_ms, StepWork()))


def search_after(definition: Definition, after_ms: int, step: StepWork) -> Steps[int | None]:
    """Return the first planned time after a time, None if there is none.

    Args:
        step: Work of the current step, which several searches may share.
    """
    after_ms = max(after_ms, definition.start_ms - 1)
    last_ms = definition.end_ms or TIME_MS_MAX  # dates end with the year 9999
    work = 0
    for _ in range(EXCLUDED_MAX):
        if after_ms >= last_ms:
            return None
        times: list[int] = []
        for time_ms, units in _unrestricted(definition, after_ms):
            times += [] if time_ms is None else [time_ms]
            work += units
            step.units += units
            if step.is_done:
                yield
                step.units = 0
        work += len(definition.exclude)
        step.units += len(definition.exclude)
        planned_ms = min(times, default=None)
        if planned_ms is None or planned_ms > last_ms:
            return None
        if definition.every_days and (date_ms := _next_date(definition, planned_ms)):
            after_ms = date_ms - 1
        elif not definition.exclude or not _is_excluded(definition, planned_ms):
            return planned_ms
        else:
            after_ms = planned_ms
        if work > WORK_MAX:
            return None
    return None


def due_ms_of(definition: Definition, planned_ms: int, following_ms: int | None) -> int:
    """Return the due time of an occurrence: its planned time and a jitter.

    The jitter depends on name and planned time only, and ends before the following occurrence.
    """
    width_ms = definition.jitter_ms
    if following_ms is not None:
        width_ms = min(width_ms, following_ms - planned_ms - 1)
    if width_ms <= 0:
        return planned_ms
    return planned_ms + zlib.crc32(f"{definition.name}@{planned_ms}".encode()) % (width_ms + 1)


def check_fires(definition: Definition, now_ms: int) -> int:
    """Return the result of `first_time`, in one step."""
    return at_once(first_time(definition, now_ms, StepWork()))


def first_time(definition: Definition, now_ms: int, step: StepWork) -> Steps[int]:
    """Return the first planned time after now.

    Args:
        step: See `search_after`.

    Raises:
        InvalidDefinition: An expression is malformed, or there is no such time.
    """
    for expression in definition.exclude:
        is_date = isinstance(_exclusion(expression), date)
        step.units += DATE_WORK if is_date else PARSE_WORK + len(expression)
        if step.is_done:
            yield
            step.units = 0
    for expression in split_expressions(definition.cron):
        _times(expression, datetime(2026, 1, 1, tzinfo=UTC))
        step.units += PARSE_WORK + len(expression)
    first_ms = yield from search_after(definition, now_ms, step)
    if first_ms is None:
        raise InvalidDefinition("it never fires: check its expression, end and exclusions")
    return first_ms


def _times(expression: str, after: datetime) -> CronSim:
    """Return an iterator over the times of an expression; a broker without schedules needs none.

    Raises:
        InvalidDefinition: The expression is malformed.
    """
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(ALIASES.get(expression, expression), after)
    except CronSimError as error:
        raise InvalidDefinition(
            f"the cron expression {expression[:100]!r} is invalid: {error}"
        ) from None


def _unrestricted(definition: Definition, after_ms: int) -> Iterator[tuple[int | None, int]]:
    """Yield the first time of each expression after `after_ms`, and the work of its search.

    The times are without exclusions and end.
    """
    every_ms, phase_ms = definition.every_ms, definition.phase_ms
    if every_ms:
        yield phase_ms + ((after_ms - phase_ms) // every_ms + 1) * every_ms, 1
        return
    zone = UTC if definition.zone == "UTC" else zone_of(definition.zone)
    for expression in split_expressions(definition.cron):
        time_ms = _next_of_cron(expression, after_ms, zone)
        days = SEARCHED_DAYS if time_ms is None else (time_ms - after_ms) // DAY_MS
        yield time_ms, PARSE_WORK + len(expression) + days


def _next_date(definition: Definition, planned_ms: int) -> int | None:
    """Return the midnight of the next date of `every_days`; None if it is that of a time."""
    zone = zone_of(definition.zone)
    start_s = definition.start_ms / 1_000
    first = datetime.fromtimestamp(start_s, zone).date() if start_s else FIRST_MONDAY
    day = datetime.fromtimestamp(planned_ms // 1_000, zone).date()
    missing_days = (first - day).days % definition.every_days
    if not missing_days:
        return None
    following = datetime.combine(day + timedelta(missing_days), time.min, zone)
    return round(following.timestamp()) * 1_000


def _next_of_cron(expression: str, after_ms: int, zone: tzinfo) -> int | None:
    """Return the first time of one expression after `after_ms`."""
    planned_ms = _next_of(expression, after_ms, zone)
    if planned_ms is None or _is_daily(expression):
        return planned_ms
    change_ms = _change_between(after_ms, planned_ms, zone)
    if change_ms is None:
        return planned_ms
    # cronsim walks in steps of an hour, and some changes are half an hour (Australia/Lord_Howe).
    offset = datetime.fromtimestamp(change_ms // 1_000, zone).utcoffset() or timedelta()
    after_change_ms = _next_of(expression, change_ms - 1_000, timezone(offset))
    return min(planned_ms, after_change_ms or planned_ms)


def _is_daily(expression: str) -> bool:
    """Return whether cronsim gives an expression one time for each matching wall clock time."""
    fields = ALIASES.get(expression, expression).split()
    has_seconds = len(fields) == FIELDS_WITH_SECONDS
    return not has_seconds and fields[0][0] != "*" and fields[1][0] != "*"


def _next_of(expression: str, after_ms: int, zone: tzinfo) -> int | None:
    try:
        times = _times(expression, datetime.fromtimestamp(after_ms // 1_000, zone))
        while True:  # in a repeated hour, the first result can be the first of both times
            planned_ms = round(next(times).timestamp()) * 1_000
            if planned_ms > after_ms:
                return planned_ms
    except (StopIteration, OverflowError):
        return None


def _change_between(after_ms: int, until_ms: int, zone: tzinfo) -> int | None:
    """Return the start of the offset at `until_ms`, None if the offset after a time is the same."""

    def offset_at(time_ms: int) -> timedelta | None:
        return datetime.fromtimestamp(time_ms // 1_000, zone).utcoffset()

    if zone is UTC or offset_at(after_ms) == offset_at(until_ms):
        return None
    low, high = after_ms // 1_000, until_ms // 1_000
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(middle * 1_000) == offset_at(after_ms):
            low = middle
        else:
            high = middle
    return high * 1_000


def _is_excluded(definition: Definition, planned_ms: int) -> bool:
    when = datetime.fromtimestamp(planned_ms // 1_000, zone_of(definition.zone))
    return any(_matches(expression, when) for expression in definition.exclude)


def _matches(expression: str, when: datetime) -> bool:
    """Return whether a date or cron expression matches a local time.

    The fields are compared: a search for the next time of a rare expression takes milliseconds.
    """
    exclusion = _exclusion(expression)
    if isinstance(exclusion, date):
        return when.date() == exclusion
    has_seconds = len(ALIASES.get(expression, expression).split()) == FIELDS_WITH_SECONDS
    return (
        when.hour in exclusion.hours
        and when.minute in exclusion.minutes
        and (not has_seconds or when.second in exclusion.seconds)
        and when.month in exclusion.months
        and exclusion.match_day(when.date())
    )


@lru_cache(maxsize=EXCLUSIONS_MAX)  # those of one search
def _exclusion(text: str) -> date | CronSim:
    """Return the date or the parsed cron expression of an exclusion.

    Raises:
        InvalidDefinition: It is neither.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        return _times(text, datetime(2026, 1, 1, tzinfo=UTC))
