"""Time windows: over midnight, by weekday, and through changes of the clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migration.steps.window import Window, WindowError, parse_window
from migration.steps.window_trigger import WindowTrigger

BERLIN = "01:00-05:00 Europe/Berlin"
MINUTE_MS, DAY_MS = 60_000, 86_400_000


def ms(text: str) -> int:
    """Return a time in ms, in UTC without a zone."""
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)


def changes(window: Window, first: str, last: str) -> list[str]:
    """Return all changes between two times in the zone's time: `+` opens, `-` closes."""
    now_ms, found = ms(first), []
    while (change_ms := window.next_change_ms(now_ms)) is not None and change_ms < ms(last):
        sign = "+" if window.is_open(change_ms) else "-"
        assert window.is_open(change_ms) != window.is_open(change_ms - 1)
        wall = datetime.fromtimestamp(change_ms / 1_000, window.zone)
        found.append(f"{sign}{wall:%a %H:%M %z}")
        now_ms = change_ms
    return found


@pytest.mark.parametrize(
    ("text", "first", "expected"),
    [
        (BERLIN, "2026-11-19T12", "+Fri 01:00, -Fri 05:00, +Sat 01:00, -Sat 05:00"),
        ("Fri 22:00-06:00", "2026-11-20", "+Fri 22:00, -Sat 06:00"),
        ("Thu 22:00-06:00", "2026-11-20", "-Fri 06:00"),
        ("Fri 12:00-24:00, Sat 00:00-03:30", "2026-11-20", "+Fri 12:00, -Sat 03:30"),
        ("Mon-Thu,Sun 01:00-05:00", "2026-11-20", ""),
        ("Fri-Mon 23:00-01:00", "2026-11-21", "-Sat 01:00, +Sat 23:00, -Sun 01:00, +Sun 23:00"),
        (
            "02:00-03:00; 01:00-02:00",
            "2026-11-21",
            "+Sat 01:00, -Sat 03:00, +Sun 01:00, -Sun 03:00",
        ),
        ("00:00-24:00 Asia/Tokyo", "2026-11-20", ""),
    ],
    ids=[
        "every day",
        "over midnight",
        "of the day before",
        "touching",
        "not these days",
        "weekend",
        "joined",
        "always",
    ],
)
def test_two_days(text: str, first: str, expected: str) -> None:
    last = (datetime.fromisoformat(first) + timedelta(days=2)).isoformat()
    found = ", ".join(change[:10] for change in changes(parse_window(text), first, last))
    assert found == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01:00-05:00", "+Sun 01:00 +0100, -Sun 05:00 +0200"),
        ("01:00-02:30", "+Sun 01:00 +0100, -Sun 03:00 +0200"),
        ("02:30-05:00", "+Sun 03:00 +0200, -Sun 05:00 +0200"),
        ("02:15-02:45", ""),
        ("02:00-03:00", ""),
    ],
)
def test_the_clock_jumps_forward(text: str, expected: str) -> None:
    window = parse_window(f"{text} Europe/Berlin")
    assert ", ".join(changes(window, "2026-03-28T23:00", "2026-03-29T22:00")) == expected


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("01:00-05:00", "+Sun 01:00 +0200", "-Sun 05:00 +0100"),
        (
            "01:00-02:30",
            "+Sun 01:00 +0200, -Sun 02:30 +0200",
            "+Sun 02:00 +0100, -Sun 02:30 +0100",
        ),
        (
            "02:30-05:00",
            "+Sun 02:30 +0200, -Sun 02:00 +0100",
            "+Sun 02:30 +0100, -Sun 05:00 +0100",
        ),
        (
            "02:15-02:45",
            "+Sun 02:15 +0200, -Sun 02:45 +0200",
            "+Sun 02:15 +0100, -Sun 02:45 +0100",
        ),
    ],
)
def test_a_repeated_hour(text: str, first: str, second: str) -> None:
    window = parse_window(f"{text} Europe/Berlin")
    found = ", ".join(changes(window, "2026-10-24T22:00", "2026-10-25T23:00"))
    assert found == f"{first}, {second}"


def test_a_weekly_window_inside_the_jump_opens_a_week_later() -> None:
    window = parse_window("Sun 02:15-02:45 Europe/Berlin")
    assert changes(window, "2026-03-22T12:00", "2026-04-06") == [
        "+Sun 02:15 +0200",
        "-Sun 02:45 +0200",
    ]
    assert window.next_change_ms(ms("2026-03-22T12:00")) == ms("2026-04-05T00:15")


def test_a_day_skipped_by_a_time_zone() -> None:
    window = parse_window("Fri 10:00-12:00 Pacific/Apia")  # 2011-12-30 was skipped
    assert changes(window, "2011-12-29", "2012-01-05") == []
    assert window.next_change_ms(ms("2011-12-29")) == ms("2012-01-06T10:00+14:00")


DAYS = st.sampled_from(["", "Mon-Fri ", "Sat,Sun ", "Fri-Mon ", "Wed "])
TIMES = st.tuples(st.integers(0, 23), st.integers(0, 59)).map("{0[0]:02}:{0[1]:02}".format)
PARTS = st.tuples(DAYS, TIMES, TIMES).filter(lambda part: part[1] != part[2])
ZONES = st.sampled_from(
    [
        "",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/Santiago",
        "Asia/Kathmandu",
        "Pacific/Apia",
    ]
)
EXPANDED = {
    "": range(7),
    "Mon-Fri ": range(5),
    "Sat,Sun ": (5, 6),
    "Fri-Mon ": (4, 5, 6, 0),
    "Wed ": (2,),
}


def naive(parts: list[tuple[str, str, str]], zone: str, now_ms: int) -> bool:
    """Walk back by minutes along the wall clock to the last opening."""
    wall = datetime.fromtimestamp(now_ms / 1_000, ZoneInfo(zone or "UTC")).replace(tzinfo=None)
    for days, opens, closes in parts:
        for back in range(24 * 60):
            then = wall - timedelta(minutes=back)
            if back and f"{then + timedelta(minutes=1):%H:%M}" == closes:
                break
            if f"{then:%H:%M}" == opens and then.weekday() in EXPANDED[days]:
                return f"{wall:%H:%M}" != closes
    return False


MOMENTS = st.one_of(
    st.integers(ms("2011-01-01"), ms("2030-01-01")),
    *(
        st.integers(ms(at) - DAY_MS, ms(at) + DAY_MS)
        for at in ("2026-03-29T01:00", "2026-10-25T01:00", "2026-11-01T06:00", "2011-12-30T10:00")
    ),
)


@given(parts=st.lists(PARTS, min_size=1, max_size=3), zone=ZONES, now_ms=MOMENTS)
def test_windows_against_the_naive_implementation(
    parts: list[tuple[str, str, str]], zone: str, now_ms: int
) -> None:
    text = ", ".join(f"{days}{opens}-{closes}" for days, opens, closes in parts)
    window = parse_window(f"{text} {zone}")
    now_ms -= now_ms % MINUTE_MS
    assert window.is_open(now_ms) == naive(parts, zone, now_ms)
    change_ms = window.next_change_ms(now_ms)
    last_ms = now_ms + 3 * DAY_MS if change_ms is None else change_ms
    for at in range(now_ms, min(last_ms, now_ms + 3 * DAY_MS), 5 * MINUTE_MS):
        assert window.is_open(at) == window.is_open(now_ms), "it changed earlier"
    if change_ms is not None:
        assert window.is_open(change_ms - 1) == window.is_open(now_ms)
        assert window.is_open(change_ms) != window.is_open(now_ms)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no times"),
        ("always", "has no times"),
        ("01:00-05:00 Europe/Atlantis", "'Europe/Atlantis' is not a time zone"),
        ("01:00-05:00 ../../etc/passwd", "is not a time zone"),
        ("25:00-05:00", "25:00 is not a time of day"),
        ("01:60-05:00", "01:60 is not a time of day"),
        ("24:00-05:00", "opens at 00:00, not at 24:00"),
        ("05:00-05:00", "opens and closes at the same time"),
        ("Mo-Fri 01:00-05:00", "'Mo' is not a day; days are Monday"),
        ("Mon--Fri 01:00-05:00", "is not a day"),
        ("Monsoon 01:00-05:00", "'Monsoon' is not a day"),
        ("nightly! 01:00-05:00", "does not have the form"),
        ("01:00-05:00, " * 33 + "UTC", "more than 32 parts"),
        ("0" * 501, "longer than 500"),
    ],
)
def test_malformed_windows_are_refused(text: str, why: str) -> None:
    with pytest.raises(WindowError, match=why) as told:
        parse_window(text)
    assert "Example: Mon-Fri 22:00-06:00" in str(told.value)


def test_days_may_be_written_out() -> None:
    openings = parse_window("monday - FRI, Sunday 1:00 - 5:00").openings
    assert openings[0].days == {0, 1, 2, 3, 4, 6}


def test_the_trigger_fires_at_every_change() -> None:
    trigger = WindowTrigger(parse_window("01:00-02:30 Europe/Berlin"))
    fired: list[datetime] = []
    for _ in range(4):
        now = fired[-1] if fired else datetime(2026, 10, 24, 22, tzinfo=UTC)
        at = trigger.get_next_fire_time(fired[-1] if fired else None, now)
        assert at is not None
        fired.append(at)
    assert [f"{at:%d %H:%M}" for at in fired] == ["24 23:00", "25 00:30", "25 01:00", "25 01:30"]
    assert str(trigger) == "window[01:00-02:30 Europe/Berlin]"


def test_missed_changes_fire_once() -> None:
    trigger = WindowTrigger(parse_window(BERLIN))
    before = datetime(2026, 11, 20, 0, tzinfo=UTC)
    now = before + timedelta(days=3, hours=12)
    assert trigger.get_next_fire_time(before, now) == datetime(2026, 11, 24, 0, tzinfo=UTC)


def test_a_window_that_never_changes_never_fires() -> None:
    trigger = WindowTrigger(parse_window("00:00-24:00"))
    assert trigger.get_next_fire_time(None, datetime(2026, 11, 20, tzinfo=UTC)) is None


def test_apscheduler_takes_the_trigger() -> None:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

    async def steps() -> datetime | None:
        scheduler = AsyncIOScheduler(timezone=UTC)
        scheduler.start(paused=True)
        job = scheduler.add_job(print, WindowTrigger(parse_window(BERLIN)))
        scheduler.shutdown()
        found: datetime | None = job.next_run_time
        return found

    found = asyncio.run(steps())
    assert found is not None
    assert found.astimezone(ZoneInfo("Europe/Berlin")).hour in (1, 5)
