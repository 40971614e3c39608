"""Audit log: one line for each refused request and each administrative request.

    {"event":"refused","user":"alice","from":"10.0.0.7:5012","code":310,"resource":"Topic:orders",
     "action":"Pub","why":"..."}
    {"event":"allowed","user":"admin","from":"127.0.0.1:4711","code":17,...}
    {"event":"allowed","user":"admin","from":"127.0.0.1:4711","code":3001,"account":"alice",...}

Lines are JSON of ASCII characters: a client cannot write a line end or a terminal's escape
sequence. Texts are cut. A flood of refusals is counted, and the count is in the next line; lines of
administrative requests are never left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LOGGER: Final = "duemq.audit"
TEXT_CHARACTERS_MAX: Final = 200
BURST_LINES: Final = 200
LINES_PER_S: Final = 50


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One decision.

    Attributes:
        user: Name that the request gives; it is verified unless the refusal is about it.
        peer: Address and port of the client.
        code: Request code.
        resource, action: What the account lacks, or was allowed to change; may be empty.
        account: Account that the request is about, as it names it; may be empty.
    """

    user: str
    peer: str
    code: int
    resource: str = ""
    action: str = ""
    why: str = ""
    account: str = ""


class AuditLog:
    """Writes decisions to the logger `duemq.audit`.

    Args:
        now_ms: Time, in ms since the epoch.

    Attributes:
        refused_count: Refusals since the start, including those without a line.
        left_out: Refusals without a line since the last line.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._log = logging.getLogger(LOGGER)
        self._allowance = float(BURST_LINES)
        self._refilled_ms = now_ms()
        self.refused_count = self.left_out = 0

    def refused(self, entry: AuditEntry) -> None:
        """Log a refusal, or count it."""
        self.refused_count += 1
        now_ms = self._now_ms()
        passed_s = max(now_ms - self._refilled_ms, 0) / 1_000
        self._allowance = min(self._allowance + passed_s * LINES_PER_S, float(BURST_LINES))
        self._refilled_ms = now_ms
        if self._allowance < 1:
            self.left_out += 1
            return
        self._allowance -= 1
        left_out, self.left_out = self.left_out, 0
        self._write(logging.WARNING, "refused", entry, left_out)

    def allowed(self, entry: AuditEntry) -> None:
        """Log an administrative request that may proceed."""
        self._write(logging.INFO, "allowed", entry)

    def _write(self, level: int, event: str, entry: AuditEntry, left_out: int = 0) -> None:
        line: dict[str, object] = {"event": event, "user": cut(entry.user), "from": entry.peer}
        line |= {"code": entry.code, "resource": cut(entry.resource), "action": entry.action}
        if entry.account:
            line["account"] = cut(entry.account)
        if entry.why:
            line["why"] = cut(entry.why)
        if left_out:
            line["leftOut"] = left_out
        self._log.log(level, "%s", json.dumps(line, separators=(",", ":")))


def cut(text: str) -> str:
    """Return a text of at most `TEXT_CHARACTERS_MAX` characters."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
