"""Planned times: ten zones against a walk over every minute, and single rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from recurring_schedules.definition import Definition, InvalidDefinition, check
from recurring_schedules.occurrences import check_fires, due_ms_of, next_after

# Zone, and days with a change of the offset within two days after them.
CHANGES = [
    ("Europe/Berlin", "2026-03-28"),
    ("Europe/Berlin", "2026-10-24"),
    ("America/New_York", "2026-03-07"),
    ("America/New_York", "2026-10-31"),
    ("America/St_Johns", "2026-03-07"),
    ("America/Santiago", "2026-09-05"),  # the gap is at midnight
    ("America/Santiago", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),  # half an hour
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Africa/Casablanca", "2026-02-14"),
    ("Africa/Casablanca", "2026-03-21"),
    ("Asia/Kathmandu", "2026-03-28"),
    ("Pacific/Apia", "2011-12-29"),  # a day is missing
    ("Europe/London", "2026-10-24"),
    ("UTC", "2026-03-28"),
]
FIXED = ["30 2 * * *", "0 0 * * *", "15 0,2,3 * * *", "45 1 * * *", "0 12 * * *"]
REAL_TIME = ["*/30 * * * *", "30 * * * *", "0 */2 * * *", "0 15 2 * * *", "0 0,30 * * * *"]


def matching(expression: str, when: datetime) -> bool:
    """Whether a wall clock time has the minute and hour of an expression; days are all `*`."""
    minute, hour = expression.split()[-5:-3]
    return _in(minute, when.minute) and _in(hour, when.hour)


def _in(field: str, value: int) -> bool:
    if field.startswith("*"):
        return value % int(field.partition("/")[2] or 1) == 0
    return value in map(int, field.split(","))


def minutes(start: datetime, days: int) -> list[datetime]:
    """Every minute of real time, as UTC."""
    return [start + timedelta(minutes=number) for number in range(days * 1_440)]


def naive_real_time(expression: str, zone: ZoneInfo, start: datetime, days: int) -> list[datetime]:
    return [when for when in minutes(start, days) if matching(expression, when.astimezone(zone))]


def naive_fixed(expression: str, zone: ZoneInfo, start: datetime, days: int) -> list[datetime]:
    """Every wall clock minute once: at its first time, or at the end of the gap that it is in."""
    first_times: dict[datetime, datetime] = {}
    walls = [(when, when.astimezone(zone).replace(tzinfo=None)) for when in minutes(start, days)]
    for (_, before), (when, wall) in pairwise(walls):
        skipped = before + timedelta(minutes=1)
        while skipped < wall:
            first_times.setdefault(skipped, when)
            skipped += timedelta(minutes=1)
        first_times.setdefault(wall, when)
    return sorted({when for wall, when in first_times.items() if matching(expression, wall)})


@pytest.mark.parametrize(("zone_name", "day"), CHANGES)
@pytest.mark.parametrize("expression", FIXED + REAL_TIME)
def test_changes_of_the_offset(expression: str, zone_name: str, day: str) -> None:
    zone = ZoneInfo(zone_name)
    start = datetime.fromisoformat(day).replace(tzinfo=zone).astimezone(UTC)
    naive = naive_fixed if expression in FIXED else naive_real_time
    expected = [when for when in naive(expression, zone, start, 3) if when > start]
    definition = Definition(name="s", topic="T", cron=expression, zone=zone_name)
    times, after_ms = [], int(start.timestamp() * 1_000)
    end_ms = after_ms + 3 * 86_400_000
    while (planned_ms := next_after(definition, after_ms)) is not None and planned_ms < end_ms:
        times.append(datetime.fromtimestamp(planned_ms / 1_000, UTC))
        after_ms = planned_ms
    assert times == expected


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000)


NOON = at("2026-01-05T12:00Z")
RULES = [
    ({"every_ms": 90_000, "phase_ms": 30_000}, NOON, "2026-01-05T12:00:30Z"),
    ({"every_ms": 90_000, "start_ms": at("2026-02-01T00:00Z")}, NOON, "2026-02-01T00:00Z"),
    ({"every_ms": 60_000, "end_ms": NOON}, NOON, None),
    ({"every_ms": 60_000, "end_ms": NOON}, NOON - 1, "2026-01-05T12:00Z"),
    ({"cron": "@daily"}, NOON, "2026-01-06T00:00Z"),
    ({"cron": "0 9 * * MON"}, NOON, "2026-01-12T09:00Z"),
    ({"cron": "*/5 * * * * *"}, NOON + 1, "2026-01-05T12:00:05Z"),
    ({"cron": "0 9 * * *", "exclude": ("2026-01-06",)}, NOON, "2026-01-07T09:00Z"),
    ({"cron": "0 9 * * *", "exclude": ("* * * * TUE,WED",)}, NOON, "2026-01-08T09:00Z"),
    ({"every_ms": 1_000, "exclude": ("* 12 * * *",)}, NOON, "2026-01-05T13:00Z"),
    ({"cron": "0 9 13 * *", "exclude": ("* * * * SUN-THU,SAT",)}, NOON, "2026-02-13T09:00Z"),
    ({"cron": "0 0 1 1 *", "exclude": ("@yearly",)}, NOON, None),
    ({"cron": "0 9 * * MON; 0 12 * * SAT"}, NOON, "2026-01-10T12:00Z"),
    ({"cron": "0 9 * * MON; 0 12 * * SAT"}, at("2026-01-10T12:00Z"), "2026-01-12T09:00Z"),
    ({"cron": "0 9 * * *; 0 0 29 2 *", "end_ms": NOON}, NOON, None),
    ({"cron": "0 9 * * *", "every_days": 14}, NOON, "2026-01-19T09:00Z"),  # from 1970-01-05
    ({"cron": "0 9,17 * * *", "every_days": 14}, at("2026-01-19T09:00Z"), "2026-01-19T17:00Z"),
    ({"cron": "0 9 * * *", "every_days": 3, "start_ms": NOON}, NOON, "2026-01-08T09:00Z"),
    ({"cron": "0 9 * * MON", "every_days": 14, "start_ms": NOON}, NOON, "2026-01-19T09:00Z"),
    (
        {"cron": "0 9 * * *", "every_days": 2, "exclude": ("2026-01-07",)},
        NOON,
        "2026-01-09T09:00Z",
    ),
]


@pytest.mark.parametrize(("zone_name", "day"), CHANGES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "45 1 * * *; 15 0,2,3 * * *"])
def test_calendar_intervals_and_several_expressions_at_changes(
    expression: str, zone_name: str, day: str
) -> None:
    """Every second date, counted from the first, has the times of single expressions."""
    zone = ZoneInfo(zone_name)
    first = datetime.fromisoformat(day).replace(tzinfo=zone)
    start = first.astimezone(UTC)
    expected = {
        when
        for part in expression.split("; ")
        for when in naive_fixed(part, zone, start, 5)
        if when > start and (when.astimezone(zone).date() - first.date()).days % 2 == 0
    }
    start_ms = int(start.timestamp() * 1_000) + 1
    definition = Definition(
        name="s", topic="T", cron=expression, zone=zone_name, every_days=2, start_ms=start_ms
    )
    times, after_ms = [], start_ms
    end_ms = start_ms + 5 * 86_400_000 - 2
    while (planned_ms := next_after(definition, after_ms)) is not None and planned_ms < end_ms:
        times.append(datetime.fromtimestamp(planned_ms / 1_000, UTC))
        after_ms = planned_ms
    assert times == sorted(expected)


@pytest.mark.parametrize(("values", "after_ms", "expected"), RULES)
def test_the_next_time(values: dict[str, object], after_ms: int, expected: str | None) -> None:
    planned_ms = next_after(Definition(name="s", topic="T", **values), after_ms)
    assert planned_ms == (None if expected is None else at(expected))


def test_jitter_is_the_same_for_a_planned_time_and_ends_before_the_next_one() -> None:
    definition = Definition(name="s", topic="T", every_ms=10_000, jitter_ms=60_000)
    for planned_ms in range(NOON, NOON + 1_000_000, 10_000):
        due_ms = due_ms_of(definition, planned_ms, planned_ms + 10_000)
        assert planned_ms <= due_ms < planned_ms + 10_000
        assert due_ms == due_ms_of(definition, planned_ms, planned_ms + 10_000)


REFUSED = [
    ({}, "give either a cron expression or an interval"),
    ({"cron": "* * * * *", "every_ms": 1_000}, "give either"),
    ({"every_ms": 1}, "the minimum is 1000 ms"),
    ({"every_ms": -1_000}, "the minimum is 1000 ms"),
    ({"cron": "0 0 30 2 *"}, "is invalid: Bad day-of-month"),
    ({"cron": "0 0 29 2 *", "end_ms": NOON}, "never fires"),
    ({"cron": "61 * * * *"}, "is invalid"),
    ({"cron": "* * *"}, "Wrong number of fields"),
    ({"cron": " ; "}, "give 1 to 20 cron expressions"),
    ({"cron": "0 9 * * *; x"}, "the cron expression 'x' is invalid"),
    ({"cron": ";".join(["* * * * *"] * 21)}, "give 1 to 20 cron expressions"),
    ({"every_days": 2}, "give either"),
    ({"every_days": 2, "every_ms": 1_000}, "needs a cron expression"),
    ({"every_days": -1, "cron": "* * * * *"}, "the interval of days"),
    ({"cron": "* * * * *", "zone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
    ({"cron": "* * * * *", "zone": "../../etc/passwd"}, "no time zone"),
    ({"cron": "* * * * *", "zone": "Europe"}, "no time zone"),
    ({"cron": "* * * * *", "exclude": ("soon",)}, "is invalid"),
    ({"every_ms": 1_000, "exclude": ("* * * * *",), "end_ms": NOON + 60_000}, "never fires"),
    ({"every_ms": 1_000, "name": "a\x01b"}, "cannot be the name"),
    ({"every_ms": 1_000, "name": "a b"}, "cannot be the name"),
    ({"every_ms": 1_000, "name": "x" * 201}, "cannot be the name"),
    ({"every_ms": 1_000, "topic": ""}, "no topic given"),
    ({"every_ms": 1_000, "overlap": "some"}, "all, latest"),
    ({"every_ms": 1_000, "start_ms": 9, "end_ms": 8}, "the end is before the start"),
    ({"every_ms": 1_000, "jitter_ms": 86_400_001}, "the jitter"),
    ({"every_ms": 1_000, "properties": {"DELAY": "3"}}, "reserved"),
    ({"every_ms": 1_000, "properties": {"DUEMQ_SCHEDULE": "x"}}, "reserved"),
    ({"every_ms": 1_000, "properties": {"a": "b\x02c"}}, "control characters"),
    ({"every_ms": 1_000, "tags": "b\x01c"}, "control characters"),
]


def check_all(definition: Definition) -> None:
    check(definition)
    check_fires(definition, NOON)


@pytest.mark.parametrize(("values", "text"), REFUSED)
def test_what_cannot_be_a_schedule(values: dict[str, object], text: str) -> None:
    definition = Definition(**({"name": "s", "topic": "T"} | values))
    with pytest.raises(InvalidDefinition, match=text):
        check_all(definition)
