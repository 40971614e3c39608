"""Bodies of bulk decisions: search pending messages (9018), decide on hits of a search (9019).

Both requests have the topic in the header field `topic`, if one is given: an account needs
permission for it, otherwise for the cluster. Bodies are MessagePack.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duemq.net.decisions import TIME_MS_MAX

PAGE_HITS_MAX: Final = 2_000  # hits of one page; decided in one request


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
