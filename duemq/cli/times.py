"""Parser of times and durations typed by users."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from duemq_common.errors import UsageError

UNIT_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
TIME_MS_MAX: Final = 10**18 - 1
_PART = re.compile(r"(\d{1,12})(ms|s|m|h|d|w)")
_SPAN = re.compile(rf"({_PART.pattern} ?){{1,6}}(?<! )")


def span_ms(text: str) -> int | None:
    """Return a span such as `90s` or `1h30m` in ms; None: the text is not a span."""
    if not _SPAN.fullmatch(text):
        return None
    parts = _PART.findall(text)
    return min(sum(int(count) * UNIT_MS[unit] for count, unit in parts), TIME_MS_MAX)


def parse_time(text: str, now_ms: int) -> int:
    """Return a time in ms since the epoch.

    Args:
        text: `now`, `+90s`, `+1h30m` (from now; ms, s, m, h, d, w), ms since the epoch, or ISO
            8601; without a zone it is UTC.
    Raises:
        UsageError: The text is none of these.
    """
    if text == "now":
        return now_ms
    if text[:1] == "+" and (span := span_ms(text[1:])) is not None:
        return min(now_ms + span, TIME_MS_MAX)
    if text.isascii() and text.isdigit() and 11 <= len(text) <= 18:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"cannot read the time {text!r}: give 2026-11-22T10:00 (UTC), a span from now such as "
            "+90s, +1h30m, +3d, +1w, or ms since the epoch"
        ) from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(round(when.timestamp() * 1_000), 0)


def duration_text(ms: int) -> str:
    """Return a duration as short text: 950ms, 12.5s, 3m20s, 2h, 4d1h."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f}".removesuffix(".0") + "s"
    parts, left = [], ms // 1_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


def time_cell(when: datetime | None) -> str:
    """Return a time for a table, empty if there is none."""
    return "" if when is None else f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1_000:03d}"
