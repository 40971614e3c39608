"""Delays of levels: the text of messageDelayLevel, `1s 5s 10s`.

Source: MessageStoreConfig, ScheduleMessageService
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from duemq_common.errors import ConfigError

LEVELS_KEY: Final = "messageDelayLevel"
DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LEVELS_MAX: Final = 1_024
DELAY_MS_MAX: Final = 100 * 366 * 86_400_000


def parse_levels(text: str, *, source: str = "") -> npt.NDArray[np.int64]:
    """Return the delays of levels 1..n in ms, (n + 1,); index 0 is unused and 0.

    Messages with zero or negative delays, which are valid as in Apache, are due at once.

    Raises:
        ConfigError: A token is not a whole number followed by s, m, h or d.
    Source: ScheduleMessageService.parseDelayLevel
    """
    tokens = text.rstrip(" ").split(" ")
    if len(tokens) > LEVELS_MAX:
        reason = f"{len(tokens)} levels; at most {LEVELS_MAX} are possible"
        raise ConfigError(LEVELS_KEY, text, reason, source=source)
    delays = np.zeros(len(tokens) + 1, np.int64)
    for position, token in enumerate(tokens, 1):
        fault = _token_fault(token)
        if fault:
            reason = f"token {position} is {token!r}: {fault}. Write it like 10s, 5m, 2h or 1d"
            raise ConfigError(LEVELS_KEY, text, reason, source=source)
        delays[position] = max(int(token[:-1]) * UNITS_MS[token[-1]], 0)
    return delays


def _token_fault(token: str) -> str:
    if not token:
        return "it is empty; levels are separated by a single space"
    if token[-1] not in UNITS_MS:
        return f"{token[-1]!r} is not a unit; the units are s, m, h and d"
    digits = token[1:-1] if token[0] in "+-" else token[:-1]
    if not (digits.isascii() and digits.isdigit()):
        return f"{token[:-1]!r} is not a whole number"
    if len(digits) > 18 or int(digits) * UNITS_MS[token[-1]] > DELAY_MS_MAX:
        return "it is longer than 100 years"
    return ""
