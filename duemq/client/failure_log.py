"""Log lines about failures that repeat, such as those of a broker that is away."""

from __future__ import annotations

import logging
from collections.abc import Hashable


class FailureLog:
    """Log of attempts that are repeated: a line for each new reason, not for each attempt.

    Args:
        log: Logger of the lines.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._reasons: dict[Hashable, str] = {}

    def failed(self, subject: Hashable, error: BaseException, text: str, *args: object) -> None:
        """Log a warning, unless the last attempt of the subject failed for the same reason.

        Args:
            text, args: Line without the reason, which follows.
        """
        reason = str(error)
        if self._reasons.get(subject) != reason:
            self._reasons[subject] = reason
            self._log.warning(f"{text}: %s", *args, reason)

    def succeeded(self, subject: Hashable) -> None:
        """Let the next failure of the subject have a line again."""
        self._reasons.pop(subject, None)
