"""Results of decision requests: verdicts on messages, grouped by requested name."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from delayed_delivery.pending import Verdict
from duemq.net.decisions import DecisionResult

TEXTS: Final = {
    Verdict.DONE: "done",
    Verdict.CANCELLED: "cancelled before",
    Verdict.DELIVERED: "already delivered",
    Verdict.UNKNOWN: "unknown",
    Verdict.REFUSED: "refused",
}
VERDICTS: Final = {text: verdict for verdict, text in TEXTS.items()}
CANCELLED_BEFORE = "the message was cancelled before"
OUT_OF_RANGE = "it is pending, but due at another time than requested"
OTHER_NAME = "decided under another name of this request"


def text_of(verdict: Verdict) -> str:
    """Return the text of a verdict in a response."""
    return TEXTS[verdict]


def verdict_of(result: DecisionResult) -> Verdict:
    """Return the verdict of a result; of a message that was cancelled before, CANCELLED."""
    if not result.messages and result.remark == CANCELLED_BEFORE:
        return Verdict.CANCELLED
    return VERDICTS[result.verdict]


class DecisionTally(Struct):
    """Verdicts on the messages of one name, added as they are decided.

    Attributes:
        not_pending: Verdict on the name if no pending message has it, else DONE. If it is DONE and
            `counts` is empty, the messages were decided on under another name of the request.
        is_out_of_range: Whether a pending message has the name, but another due time than
            requested.
        counts: Number of messages by verdict.
        due_ms: Earliest due time of the messages decided on in ms since the epoch; -1: none.
    """

    name: str
    not_pending: int = Verdict.UNKNOWN
    is_out_of_range: bool = False
    counts: dict[int, int] = field(default_factory=dict)
    due_ms: int = -1
    remark: str = ""

    def add(self, verdict: int, due_ms: int, remark: str) -> None:
        """Add the verdict on one message."""
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        if verdict == Verdict.DONE:
            self.due_ms = due_ms if self.due_ms < 0 else min(self.due_ms, due_ms)
        if remark and not self.remark:
            self.remark = remark

    def result(self, action: str, *, moved_to_ms: int, refused_any: bool = False) -> DecisionResult:
        """Return the result.

        Args:
            moved_to_ms: New due time of a move in ms since the epoch.
            refused_any: Whether the store refused a decision on any name of the request.
        """
        done, refused = self.counts.get(Verdict.DONE, 0), self.counts.get(Verdict.REFUSED, 0)
        if done or refused:
            verdict = Verdict.REFUSED if refused else Verdict.DONE
        elif self.counts:
            verdict = Verdict(min(self.counts))
        elif self.is_out_of_range:
            verdict, self.remark = Verdict.UNKNOWN, OUT_OF_RANGE
        elif self.not_pending == Verdict.DONE:
            verdict = Verdict.REFUSED if refused_any else Verdict.DONE
            self.remark = self.remark or OTHER_NAME
        else:
            verdict = Verdict(self.not_pending)
        remark = self.remark
        if verdict is Verdict.CANCELLED:
            remark = CANCELLED_BEFORE
            verdict = Verdict.DONE if action == "cancel" else Verdict.UNKNOWN
        due_ms, former_ms = self.due_ms, -1
        if action == "move" and done:
            due_ms, former_ms = moved_to_ms, self.due_ms
        return DecisionResult(self.name, text_of(verdict), done, due_ms, refused, remark, former_ms)
