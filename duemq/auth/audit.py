"""Audit log: one line for each refused request and each administrative request.

    {"event":"refused","user":"alice","from":"10.0.0.7:5012","code":310,"resource":"Topic:orders",
     "action":"Pub","why":"..."}
    {"event":"allowed","user":"admin","from":"127.0.0.1:4711","code":17,...}
    {"event":"allowed","user":"admin","from":"127.0.0.1:4711","code":3001,"account":"alice",...}

Lines are ASCII JSON, so a client cannot inject line ends or terminal escape sequences. Long texts
are truncated. Refusals above a rate are only counted, and the count is in the next line; lines of
administrative requests are never suppressed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from msgspec import Struct

LOGGER: Final = "duemq.audit"
TEXT_CHARACTERS_MAX: Final = 200
BURST_LINES: Final = 200
LINES_PER_S: Final = 50


class AuditEntry(Struct, frozen=True):
    """One decision.

    Attributes:
        user: User name in the request; not verified if the authentication failed.
        peer: Address and port of the client.
        code: Request code.
        resource, action: Missing permission, or the permitted change; may be empty.
        account: Account that the request changes; may be empty.
    """

    user: str
    peer: str
    code: int
    resource: str = ""
    action: str = ""
    reason: str = ""
    account: str = ""


class AuditLog:
    """Writer of decisions to the logger `duemq.audit`.

    Args:
        now_ms: Returns the time in ms since the epoch.

    Attributes:
        refused_count: Refusals since the start, including suppressed ones.
        suppressed: Suppressed refusals since the last line.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._log = logging.getLogger(LOGGER)
        self._allowance = float(BURST_LINES)
        self._refilled_ms = now_ms()
        self.refused_count = self.suppressed = 0

    def refused(self, entry: AuditEntry) -> None:
        """Log a refusal, or count it."""
        self.refused_count += 1
        now_ms = self._now_ms()
        passed_s = max(now_ms - self._refilled_ms, 0) / 1_000
        self._allowance = min(self._allowance + passed_s * LINES_PER_S, float(BURST_LINES))
        self._refilled_ms = now_ms
        if self._allowance < 1:
            self.suppressed += 1
            return
        self._allowance -= 1
        self._write(logging.WARNING, "refused", entry)

    def allowed(self, entry: AuditEntry) -> None:
        """Log an administrative request that may proceed."""
        self._write(logging.INFO, "allowed", entry)

    def _write(self, level: int, event: str, entry: AuditEntry) -> None:
        line: dict[str, object] = {
            "event": event,
            "user": truncated(entry.user),
            "from": entry.peer,
        }
        line |= {"code": entry.code, "resource": truncated(entry.resource), "action": entry.action}
        if entry.account:
            line["account"] = truncated(entry.account)
        if entry.reason:
            line["why"] = truncated(entry.reason)
        if self.suppressed:
            line["leftOut"], self.suppressed = self.suppressed, 0
        self._log.log(level, "%s", json.dumps(line, separators=(",", ":")))


def truncated(text: str) -> str:
    """Return a text of at most `TEXT_CHARACTERS_MAX` characters."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
