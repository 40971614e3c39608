"""Log lines: one per message, control characters escaped; one per reason of a repeated failure.

Log messages contain names, ids and remarks of clients. Unescaped, a line feed could forge a log
line, and an escape sequence could control the terminal.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Final

MESSAGE_CHARS_MAX: Final = 8_192
_NOT_SHOWN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_FEED: Final = "\n"


class OneLineFormatter(logging.Formatter):
    """Formatter whose messages are bounded and have no control characters.

    Each line of a traceback is escaped and prefixed.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        if len(record.message) > MESSAGE_CHARS_MAX:
            record.message = record.message[:MESSAGE_CHARS_MAX] + "..."
        return escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """Return the lines of a traceback."""
        text = super().formatException(ei)  # type: ignore[arg-type]
        lines = (escaped(line) for line in text.split(_LINE_FEED))
        return _LINE_FEED.join(f"  | {line}" for line in lines)


_OWN: Final = frozenset(vars(logging.makeLogRecord({})))


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object per record: time, level, logger, message, the fields of the
    event (`extra`), and a traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as ASCII text in one line."""
        seconds, ms = divmod(int(record.created * 1_000), 1_000)
        fields: dict[str, object] = {
            "time": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:MESSAGE_CHARS_MAX],
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def escaped(text: str) -> str:
    """Return a text with its control characters escaped."""
    return _NOT_SHOWN.sub(lambda match: ascii(match.group())[1:-1], text)


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
