"""Bodies of decisions about pending messages: cancel (9011), move (9012), fire (9013)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from duemq.net.codes import RequestCode

ACTIONS: Final[Mapping[int, str]] = {
    RequestCode.CANCEL_PENDING: "cancel",
    RequestCode.MOVE_PENDING: "move",
    RequestCode.FIRE_PENDING: "fire",
}
NAMES_MAX: Final = 10_000  # names in one request
TIME_MS_MAX: Final = 10**18


class DecisionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a decision request.

    Attributes:
        handles: Recall handles from the responses to sends.
        topic: Topic of the ids or keys; empty: any.
        from_ms, until_ms: Only messages due in [from_ms, until_ms) are selected.
        deliver_ms, delay_ms: New due time of a move in ms: since the epoch, or from now.
        dry_run: Whether to report the results without storing decisions.
    """

    ids: list[str] = []
    keys: list[str] = []
    handles: list[str] = []
    topic: str = ""
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX
    deliver_ms: int | None = None
    delay_ms: int | None = None
    dry_run: bool = False


class DecisionResult(msgspec.Struct, omit_defaults=True):
    """Result for one requested name.

    Attributes:
        name: Name as in the request.
        verdict: `done`, `already delivered`, `unknown` or `refused`.
        messages: Number of messages decided on.
        due_ms: Earliest due time of these messages in ms since the epoch, after a move the new
            one; -1: none.
        refused: Number of messages that the store refused.
        remark: Reason of the verdict, or a special condition.
        former_due_ms: Earliest due time before a move; -1: none, or no move.
    """

    name: str
    verdict: str
    messages: int = 0
    due_ms: int = -1
    refused: int = 0
    remark: str = ""
    former_due_ms: int = -1


class DecisionResponse(msgspec.Struct):
    """Body of a response to a decision request."""

    results: list[DecisionResult]
    dry_run: bool
