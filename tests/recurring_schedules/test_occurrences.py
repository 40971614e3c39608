"""Planned times: ten zones against a walk over every minute, and single rules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from recurring_schedules.definition import (
    ALIASES,
    TIME_MS_MAX,
    Definition,
    InvalidDefinition,
    check,
)
from recurring_schedules.occurrences import (
    DAY_MS,
    PARSE_WORK,
    SEARCHED_DAYS,
    STEP_WORK,
    StepWork,
    _matches,
    _unrestricted,
    check_fires,
    due_ms_of,
    first_time,
    next_after,
    search_after,
)

SATURDAY_MS = 1_767_398_400_000  # 2026-01-03T00:00Z

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


@pytest.mark.sampled
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
    ({"cron": "0 9 * * *"}, TIME_MS_MAX - 1, None),
    ({"cron": "0 9 * * *"}, 10**15, None),
    ({"every_ms": 1_000}, TIME_MS_MAX - 1, "5138-11-16T09:46:40Z"),
    ({"every_ms": 1_000, "exclude": ("2026-01-06",)}, TIME_MS_MAX, None),
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


@pytest.mark.sampled
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


@pytest.mark.sampled
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
    ({"every_ms": 1_000, "tags": "b\x02c", "properties": {"TAGS": "b"}}, "control characters"),
    ({"every_ms": 1_000, "keys": "b\x02c", "properties": {"KEYS": "b"}}, "control characters"),
    ({"cron": "1" * 5_000 + " * * * *"}, "has more than 1000 characters"),
    ({"every_ms": 1_000, "exclude": ("1" * 5_000 + " * * * *",)}, "more than 1000 characters"),
    ({"every_ms": 1_000, "properties": {"a": "ä" * 15_500}}, "more than 31000 bytes"),
    ({"every_ms": 1_000, "exclude": ("* * * * *" + " " * 31,) * 1_000}, "more than 32000"),
    ({"every_ms": 10**14, "exclude": ("* * * * *",)}, "never fires"),
    ({"cron": "0 0 * * MON", "every_days": 522 * 7, "start_ms": NOON + DAY_MS}, "never fires"),
]


def check_all(definition: Definition) -> None:
    check(definition)
    check_fires(definition, NOON)


@pytest.mark.parametrize(("values", "text"), REFUSED)
def test_what_cannot_be_a_schedule(values: dict[str, object], text: str) -> None:
    definition = Definition(**({"name": "s", "topic": "T"} | values))
    with pytest.raises(InvalidDefinition, match=text):
        check_all(definition)


EXCLUSIONS = [
    "* * * * SAT,SUN",
    "*/7 9-17 * * *",
    "0 0 13 * FRI",  # either day matches
    "30 2 29 2 *",
    "0 0 * 2 1#5",
    "15,45 * * * * *",
    "0 0 L * *",
    "0 0 LW * *",
    "0 0 * * 5L",
    "@weekly",
    "2026-03-28",
]


def naively_excluded(expression: str, when: datetime) -> bool:
    """Search for the time, as for that of an occurrence."""
    if expression[0] == "2":
        return when.date().isoformat() == expression
    text = ALIASES.get(expression, expression)
    local = when.replace(tzinfo=UTC)
    if len(text.split()) == 5:
        local = local.replace(second=0)
    return next(CronSim(text, local - timedelta(seconds=1)), None) == local


@pytest.mark.parametrize("zone_name", ["UTC", "Australia/Lord_Howe"])
@pytest.mark.parametrize("expression", EXCLUSIONS)
def test_exclusions_compare_the_fields_of_the_local_time(expression: str, zone_name: str) -> None:
    zone, start = ZoneInfo(zone_name), datetime(2026, 1, 28, tzinfo=UTC)
    times = [start + timedelta(hours=11, seconds=15) * number for number in range(120)]
    times += [datetime(2026, 2, day, tzinfo=zone) for day in range(1, 29)]
    times.append(datetime(2044, 2, 29, tzinfo=zone))
    for when in times:
        local = when.astimezone(zone)
        assert _matches(expression, local) == naively_excluded(expression, local), local


def test_rare_exclusions_are_not_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search of such an expression takes milliseconds, and a definition has 1,000 of them."""
    definition = Definition(name="s", topic="T", every_ms=1_000, exclude=("0 0 * 2 1#5",) * 1_000)
    searches: list[object] = []
    monkeypatch.setattr(CronSim, "__next__", searches.append)
    assert next_after(definition, 0) == 1_000
    assert searches == []


@pytest.mark.parametrize(
    ("values", "expressions"),
    [
        ({"every_ms": 1_000, "exclude": ("0 0 * 2 1#5",) * 999 + ("* * * * * *",)}, 1_000),
        ({"cron": ";".join(["* * * * * *"] * 20), "exclude": ("* * * * * *",)}, 20),
        ({"cron": "* * * * * *;0 0 * 2 1#5", "exclude": ("* * * * * *",)}, 2_000),
        ({"cron": "0 0 * 2 1#5", "every_days": 3_659}, 2_000),
    ],
)
def test_a_search_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, object], expressions: int
) -> None:
    """A client could block all deliveries for hours by one definition.

    Args:
        expressions: Work of one step, at least.
    """
    steps: list[int] = []

    def search(definition: Definition, after_ms: int) -> Iterator[tuple[int | None, int]]:
        steps.append(after_ms)
        return _unrestricted(definition, after_ms)

    monkeypatch.setattr("recurring_schedules.occurrences.WORK_MAX", 20_000)
    monkeypatch.setattr("recurring_schedules.occurrences._unrestricted", search)
    definition = Definition(name="s", topic="T", **values)
    with pytest.raises(InvalidDefinition, match="it never fires"):
        check_fires(definition, 1_767_571_200_000)
    assert len(steps) <= 20_000 // expressions + 1


@pytest.mark.parametrize(
    "values",
    [
        {"cron": "* * * * *", "exclude": ("* * * * 6", "* * * * 0")},
        {"cron": ";".join(["0 0 * 2 1#5"] * 20)},
        {"every_ms": 1_000, "exclude": ("* * * * * *",) * 1_000},
    ],
    ids=["a weekend", "a rare date", "many exclusions"],
)
def test_a_search_has_steps_of_bounded_work(values: dict[str, Any]) -> None:
    """A search over a weekend took 0.1 s, others 0.4 s, during which nothing was delivered."""
    definition, step = Definition(name="s", topic="T", **values), StepWork()
    units = [step.units for _ in search_after(definition, SATURDAY_MS, step)]
    assert len(units) > 10
    assert max(units) <= STEP_WORK + max(SEARCHED_DAYS, 1_000) + PARSE_WORK


def test_the_work_of_a_search_grows_with_the_length_of_the_expression() -> None:
    """A parse of 16,000 characters took 10 ms, and a step had 125 of them."""
    expression = "*," * 400 + "* * * * *"
    definition = Definition(name="s", topic="T", cron=expression)
    assert [units for _, units in _unrestricted(definition, NOON)] == [PARSE_WORK + len(expression)]


def test_the_exclusions_of_a_new_schedule_are_parsed_in_steps() -> None:
    definition = Definition(
        name="s",
        topic="T",
        every_ms=1_000,
        exclude=tuple(f"{n % 60} 0 1 1 *" for n in range(1_000)),
    )
    assert len(list(first_time(definition, SATURDAY_MS, StepWork()))) >= 1_000 * PARSE_WORK / 5_000
