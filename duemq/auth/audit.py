"""Audit log: one line for each refused request and each administrative request.

    {"event":"refused","user":"alice","from":"10.0.0.7:5012","code":310,"resource":"Topic:orders",
     "action":"Pub","why":"..."}
    {"event":"allowed","user":"admin","from":"127.0.0.1:4711","code":17,...}
    {"event":"allowed","user":"admin","from":"127.0.0.1:4711","code":3001,"account":"alice",...}

Lines are ASCII JSON, so a client cannot inject line ends or terminal escape sequences. Long texts
are truncated. Refusals above a rate are only counted, and the count is in the next line; lines of
administrative requests are never suppressed.

The newest entries are also in memory, for the console, with the code of the response. Refusals have
an own list there, so that a flood of them hides no request of an operator.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import merge
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from duemq.net.dispatcher import RecordResult
from duemq_common.codes import ResponseCode

LOGGER: Final = "duemq.audit"
TEXT_CHARACTERS_MAX: Final = 200
BURST_LINES: Final = 200
LINES_PER_S: Final = 50
ENTRIES_MAX: Final = 1_000  # in memory, of each event
PAGE_MAX: Final = 200


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


class RecordedEntry(Struct):
    """Entry in memory.

    Attributes:
        number: Number of the entry since the start.
        result: Code of the response; None: the request has not ended.
    """

    number: int
    time_ms: int
    entry: AuditEntry
    result: int | None = None

    def plain(self) -> dict[str, object]:
        """Return the entry as plain data."""
        entry = self.entry
        return {
            "number": self.number,
            "time_ms": self.time_ms,
            "user": entry.user,
            "from": entry.peer,
            "code": entry.code,
            "resource": entry.resource,
            "action": entry.action,
            "account": entry.account,
            "reason": entry.reason,
            "result": self.result,
        }


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
        self._allowed = deque[RecordedEntry](maxlen=ENTRIES_MAX)
        self._refused = deque[RecordedEntry](maxlen=ENTRIES_MAX)
        self._number = 0

    def refused(self, entry: AuditEntry) -> None:
        """Log a refusal, or count it."""
        self.refused_count += 1
        entry = shortened(entry)
        self._record(self._refused, entry).result = ResponseCode.NO_PERMISSION
        now_ms = self._now_ms()
        passed_s = max(now_ms - self._refilled_ms, 0) / 1_000
        self._allowance = min(self._allowance + passed_s * LINES_PER_S, float(BURST_LINES))
        self._refilled_ms = now_ms
        if self._allowance < 1:
            self.suppressed += 1
            return
        self._allowance -= 1
        self._write(logging.WARNING, "refused", entry)

    def allowed(self, entries: Iterable[AuditEntry]) -> RecordResult:
        """Log an administrative request that may proceed; return what records its result."""
        recorded = []
        for entry in map(shortened, entries):
            self._write(logging.INFO, "allowed", entry)
            recorded.append(self._record(self._allowed, entry))

        def record_result(code: int) -> None:
            for each in recorded:
                each.result = code

        return record_result

    def allowed_read(self, entry: AuditEntry) -> None:
        """Log an administrative request that only reads; it has no entry in memory."""
        self._write(logging.INFO, "allowed", shortened(entry))

    def view(self, fields: Mapping[str, str]) -> dict[str, object]:
        """Return a page of the entries in memory, newest first.

        Args:
            fields: `before`: number after those of the page; `count`: their maximum number.
        """
        before = _number(fields.get("before", ""), self._number + 1)
        count = min(_number(fields.get("count", ""), PAGE_MAX), PAGE_MAX)
        newest = merge(reversed(self._allowed), reversed(self._refused), key=lambda e: -e.number)
        page = list(islice((each for each in newest if each.number < before), count))
        following = page[-1].number if len(page) == count else None
        return {"entries": [each.plain() for each in page], "before": following}

    def _record(self, entries: deque[RecordedEntry], entry: AuditEntry) -> RecordedEntry:
        self._number += 1
        recorded = RecordedEntry(self._number, self._now_ms(), entry)
        entries.append(recorded)
        return recorded

    def _write(self, level: int, event: str, entry: AuditEntry) -> None:
        line: dict[str, object] = {
            "event": event,
            "user": entry.user,
            "from": entry.peer,
            "code": entry.code,
            "resource": entry.resource,
            "action": entry.action,
        }
        if entry.account:
            line["account"] = entry.account
        if entry.reason:
            line["why"] = entry.reason
        if self.suppressed:
            line["leftOut"], self.suppressed = self.suppressed, 0
        self._log.log(level, "%s", json.dumps(line, separators=(",", ":")))


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default


def shortened(entry: AuditEntry) -> AuditEntry:
    """Return an entry with truncated texts, which clients choose: entries stay in memory."""
    return replace(
        entry,
        user=truncated(entry.user),
        resource=truncated(entry.resource),
        reason=truncated(entry.reason),
        account=truncated(entry.account),
    )


def truncated(text: str) -> str:
    """Return a text of at most `TEXT_CHARACTERS_MAX` characters."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
