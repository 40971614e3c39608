"""Time window of migrations: "only between 01:00 and 05:00 Europe/Berlin". Pure.

    01:00-05:00 Europe/Berlin
    Mon-Fri 22:00-06:00, Sat,Sun 00:00-24:00 America/New_York        several, each with its days
    23:30-00:30                                                      UTC if no zone is given

A window is open while the local time of its zone is within it. When the clocks change, a window of
four hours is therefore open for three or five hours, and a window within the skipped hour does not
open on that day. A window across midnight belongs to the day on which it opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from duemq_common.errors import UsageError

DAY_NAMES: Final = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
DAY_MINUTES: Final = 24 * 60
PARTS_MAX: Final = 32
TEXT_CHARS_MAX: Final = 500
HORIZON_DAYS: Final = 22
"""Search range for the next change: a clock change may skip a weekly window."""
_PART = re.compile(
    r"(?:(?P<days>[A-Za-z][A-Za-z,\- ]*?) +)?(?P<h>\d\d?):(?P<m>\d\d) *- *(?P<H>\d\d?):(?P<M>\d\d)"
)
_SPAN = re.compile(r"\d\d?:\d\d *- *\d\d?:\d\d")


class WindowError(UsageError):
    """Error: a malformed window."""

    def __init__(self, text: str, why: str) -> None:
        self.text, self.why = text, why
        example = "Mon-Fri 22:00-06:00, Sat 00:00-24:00 Europe/Berlin"
        super().__init__(f"window {text!r}: {why}. Example: {example}")


@dataclass(frozen=True, slots=True)
class WeeklyWindow:
    """Weekly opening on some days, from one minute of the day to another.

    Attributes:
        days: Days on which it opens, 0 Monday ... 6 Sunday.
        close_minute: Minute at which it closes; on the next day if not above `open_minute`.
    """

    days: frozenset[int]
    open_minute: int
    close_minute: int

    def shows(self, day: int, minute: int) -> bool:
        """Return whether a minute of a weekday is in the opening."""
        if self.open_minute < self.close_minute:
            return day in self.days and self.open_minute <= minute < self.close_minute
        if minute >= self.open_minute:
            return day in self.days
        return minute < self.close_minute and (day - 1) % 7 in self.days


@dataclass(frozen=True, slots=True)
class Window:
    """Times at which migrations may work.

    Attributes:
        text: Text that it was parsed from.
    """

    text: str
    zone: ZoneInfo
    openings: tuple[WeeklyWindow, ...]

    def is_open(self, now_ms: int) -> bool:
        """Return whether the window is open at a time."""
        wall = _local_time(now_ms, self.zone)
        minute = wall.hour * 60 + wall.minute
        return any(opening.shows(wall.weekday(), minute) for opening in self.openings)

    def next_change_ms(self, now_ms: int) -> int | None:
        """Return the next time at which the window opens or closes; None if it never does."""
        is_open, today = self.is_open(now_ms), _local_time(now_ms, self.zone).date()
        for step in range(-1, HORIZON_DAYS):
            for time_ms in sorted(self._candidates_ms(today + timedelta(days=step))):
                if time_ms > now_ms and self.is_open(time_ms) != is_open:
                    return time_ms
        return None

    def _candidates_ms(self, day: date) -> Iterator[int]:
        """Yield the times of a day at which the window may open or close, unordered."""
        midnight = datetime.combine(day, time(), self.zone)
        for opening in self.openings:
            for minute in (opening.open_minute, opening.close_minute):
                wall = midnight + timedelta(minutes=minute)
                yield _ms(wall)
                yield _ms(wall.replace(fold=1))  # a local time that occurs twice
        first_ms, end_ms = _ms(midnight), _ms(midnight + timedelta(days=1))
        if self._offset(first_ms) != self._offset(end_ms):
            yield self._clock_change_ms(first_ms, end_ms)

    def _clock_change_ms(self, first_ms: int, end_ms: int) -> int:
        """Return the time at which the local clock changes."""
        before = self._offset(first_ms)
        while end_ms - first_ms > 1:
            middle_ms = (first_ms + end_ms) // 2
            if self._offset(middle_ms) == before:
                first_ms = middle_ms
            else:
                end_ms = middle_ms
        return end_ms

    def _offset(self, time_ms: int) -> timedelta | None:
        return _local_time(time_ms, self.zone).utcoffset()


def parse_window(text: str) -> Window:
    """Return the window that a text describes.

    Raises:
        WindowError: The text is malformed.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise WindowError(text[:40] + "...", f"it is longer than {TEXT_CHARS_MAX} characters")
    spans = list(_SPAN.finditer(text))
    if not spans:
        raise WindowError(text, "it has no times, as in 01:00-05:00")
    rest = text[spans[-1].end() :].strip()
    openings, start = [], 0
    for span in spans:
        openings.append(_opening(text, text[start : span.end()].lstrip(" ,;")))
        start = span.end()
    if len(openings) > PARTS_MAX:
        raise WindowError(text, f"it has more than {PARTS_MAX} parts")
    return Window(text, _zone(text, rest), tuple(openings))


def _opening(text: str, part: str) -> WeeklyWindow:
    found = _PART.fullmatch(part.strip())
    if found is None:
        raise WindowError(text, f"{part.strip()!r} does not have the form Mon-Fri 01:00-05:00")
    opens = _minute(text, found["h"], found["m"])
    closes = _minute(text, found["H"], found["M"])
    if opens == closes:
        raise WindowError(text, f"{part.strip()!r} opens and closes at the same time")
    if opens == DAY_MINUTES:
        raise WindowError(text, "a window opens at 00:00, not at 24:00")
    return WeeklyWindow(_days(text, found["days"] or "Mon-Sun"), opens, closes)


def _minute(text: str, hour: str, minute: str) -> int:
    value = int(hour) * 60 + int(minute)
    if int(minute) > 59 or value > DAY_MINUTES:
        raise WindowError(text, f"{hour}:{minute} is not a time of day")
    return value


def _days(text: str, names: str) -> frozenset[int]:
    days: set[int] = set()
    for name in names.replace(" ", "").split(","):
        first, dash, last = name.partition("-")
        start = _day(text, first)
        count = (_day(text, last) - start) % 7 if dash else 0
        days |= {(start + step) % 7 for step in range(count + 1)}
    return frozenset(days)


def _day(text: str, name: str) -> int:
    for day, full in enumerate(DAY_NAMES):
        if len(name) >= 3 and full.lower().startswith(name.lower()):
            return day
    raise WindowError(text, f"{name!r} is not a day; days are {', '.join(DAY_NAMES)}")


def _zone(text: str, name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name or "UTC")
    except (KeyError, ValueError, OSError) as error:
        raise WindowError(text, f"{name!r} is not a time zone such as Europe/Berlin") from error


def _local_time(time_ms: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(time_ms / 1_000, zone)


def _ms(local_time: datetime) -> int:
    return round(local_time.timestamp() * 1_000)
