"""Bodies of decisions about pending messages.

    9011, 9012, 9013   cancel, move, fire by names; JSON
    9018, 9019         search pending messages, decide on the hits; MessagePack

The bulk requests 9018 and 9019 have the topic in the header field `topic`, if one is given: an
account needs permission for it, otherwise for the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from duemq_common.codes import RequestCode

ACTIONS: Final[Mapping[int, str]] = {
    RequestCode.CANCEL_PENDING: "cancel",
    RequestCode.MOVE_PENDING: "move",
    RequestCode.FIRE_PENDING: "fire",
}
NAMES_MAX: Final = 10_000  # names in one request
TIME_MS_MAX: Final = 10**18
PAGE_HITS_MAX: Final = 2_000  # hits of one page; decided in one request


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


class PendingHits(msgspec.Struct, array_like=True, kw_only=True):
    """Body of a response to SEARCH_PENDING: a page of hits, as columns.

    Attributes:
        topics: Topics of the hits.
        topic_indexes: Index of each hit's topic in `topics`.
        keys: Unique keys, UTF-8.
        offsets: Log offsets of the records.
        due_ms: Due times in ms since the epoch.
        cursor: Cursor of the next page, None at the end. A page may be empty before the end.
        may_repeat: Whether a later page may contain these hits again.
        now_ms: Time of the broker's clock in ms since the epoch.
        log_end: End of the log when the page was read.
        nameless: Number of hits without a unique key or with an unreadable record, which are left
            out.
        damage: Unreadable parts of the store, whose messages are missing.
    """

    topics: list[str]
    topic_indexes: list[int]
    keys: list[bytes]
    offsets: list[int]
    due_ms: list[int]
    cursor: str | None
    may_repeat: bool = False
    now_ms: int = 0
    log_end: int = 0
    nameless: int = 0
    damage: list[str] = []


class HitDecision(msgspec.Struct, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """Body of DECIDE_HITS.

    The unique key identifies a message. The log offset spares the broker the search for it: if the
    record at this offset has another key, or is no longer pending, the broker searches by the key.

    Attributes:
        action: `cancel`, `move` or `fire`.
        keys, offsets: As in `PendingHits`.
        from_ms, until_ms: A message found by its key must be due in [from_ms, until_ms).
        deliver_ms: New due time of a move in ms since the epoch.
        dry_run: Whether to report the results without storing decisions.
    """

    action: str
    keys: list[bytes]
    offsets: list[int]
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX
    deliver_ms: int | None = None
    dry_run: bool = False


class HitVerdicts(msgspec.Struct, array_like=True, kw_only=True):
    """Body of a response to DECIDE_HITS.

    Attributes:
        verdicts: (n,) u1: `delayed_delivery.pending.Verdict` of each hit.
        remarks: By hit: reason of the verdict, or a special condition.
    """

    verdicts: bytes
    remarks: dict[int, str]
