"""Results of decisions: verdicts of single messages, collected by requested name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from delivery.pending import Verdict

TEXTS: Final = {
    Verdict.DONE: "done",
    Verdict.CANCELLED: "cancelled before",
    Verdict.DELIVERED: "already delivered",
    Verdict.UNKNOWN: "unknown",
    Verdict.REFUSED: "refused",
}
WAS_CANCELLED = "it was cancelled before"
SHARED = "decided under another name of this request"


class Result(msgspec.Struct, omit_defaults=True):
    """What became of one name.

    Attributes:
        name: Name in the request.
        verdict: `done`, `already delivered`, `unknown` or `refused`.
        messages: Number of messages decided on.
        due_ms: when the first of them was due.
        refused: Number of messages that the store refused.
        remark: Reason, or a special condition.
    """

    name: str
    verdict: str
    messages: int = 0
    due_ms: int = -1
    refused: int = 0
    remark: str = ""


def text_of(verdict: Verdict) -> str:
    """Return a verdict as it is answered."""
    return TEXTS[verdict]


@dataclass(slots=True)
class Tally:
    """Findings for one name so far.

    Attributes:
        gone: `Verdict` while nothing was decided; DONE: something was found. With DONE and no
            counts what was found was decided under another name of the same request.
    """

    name: str
    gone: int = Verdict.UNKNOWN
    counts: dict[int, int] = field(default_factory=dict)
    due_ms: int = -1
    remark: str = ""

    def add(self, verdict: int, due_ms: int, remark: str) -> None:
        """Count one message."""
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        if verdict == Verdict.DONE:
            self.due_ms = due_ms if self.due_ms < 0 else min(self.due_ms, due_ms)
        if remark and not self.remark:
            self.remark = remark

    def result(self, action: str, *, refused_any: bool = False) -> Result:
        """Return the result.

        Args:
            refused_any: whether the store refused a decision under any name of the request.
        """
        done, refused = self.counts.get(Verdict.DONE, 0), self.counts.get(Verdict.REFUSED, 0)
        if done or refused:
            verdict = Verdict.REFUSED if refused else Verdict.DONE
        elif self.counts:
            verdict = Verdict(min(self.counts))
        elif self.gone == Verdict.DONE:
            verdict = Verdict.REFUSED if refused_any else Verdict.DONE
            self.remark = self.remark or SHARED
        else:
            verdict = Verdict(self.gone)
        remark = self.remark
        if verdict is Verdict.CANCELLED:
            remark = WAS_CANCELLED
            verdict = Verdict.DONE if action == "cancel" else Verdict.UNKNOWN
        return Result(self.name, text_of(verdict), done, self.due_ms, refused, remark)
