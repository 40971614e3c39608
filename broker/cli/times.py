"""Times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from message_store.errors import UsageError

UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
TIME_MS_MAX: Final = 10**18 - 1
_SPAN = re.compile(r"\+(\d{1,12})(ms|s|m|h|d)")


def parse_time(text: str, now_ms: int) -> int:
    """Return a time in ms since the epoch.

    Args:
        text: `+90s` (from now; ms, s, m, h, d), ms since the epoch, or ISO 8601; without a zone
            it is UTC.
    Raises:
        UsageError: It is none of them.
    """
    span = _SPAN.fullmatch(text)
    if span:
        return min(now_ms + int(span[1]) * UNIT_MS[span[2]], TIME_MS_MAX)
    if text.isascii() and text.isdigit() and 11 <= len(text) <= 18:
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        why = "no time: give 2026-11-22T10:00 (UTC), +90s, +5m, +2h, +3d, or ms since the epoch"
        raise UsageError(f"{text!r} is {why}") from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(round(when.timestamp() * 1_000), 0)
