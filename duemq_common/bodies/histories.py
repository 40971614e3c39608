"""Bodies of history requests (9002): messages of a name, and their histories."""

from __future__ import annotations

import msgspec


class HistoryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a history request.

    Attributes:
        name: Unique key, one of the KEYS, or offset message id.
        topic: Topic of the messages; empty: any.
    """

    name: str
    topic: str = ""


class HistoryStep(msgspec.Struct, kw_only=True):
    """One record of a history.

    Attributes:
        event: Kind of the record, such as `scheduled` or `delivered`.
        topic, queue_id, queue_offset: Position of the record; that of a pending message is in an
            internal topic.
        store_ms: Store time, in ms since the epoch.
        size: Size of the record in bytes.
        due_ms: Due time of a scheduled record, in ms since the epoch; None: not scheduled, or
            unknown.
        detail: Explanation, such as the group of a retry; may be empty.
    """

    event: str
    commit_log_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    size: int
    due_ms: int | None = None
    detail: str = ""


class OpenPop(msgspec.Struct, kw_only=True):
    """Pop of a message that its group has not acknowledged yet.

    Attributes:
        topic, queue_id: Queue of the popped record, possibly of a retry topic.
        popped_ms: Time of the pop, in ms since the epoch.
        invisible_until_ms: Time at which the message is visible again, in ms since the epoch.
        attempt: 1 for the first delivery to the group, one more for each retry.
    """

    group: str
    topic: str
    queue_id: int
    popped_ms: int
    invisible_until_ms: int
    attempt: int


class MessageHistory(msgspec.Struct, kw_only=True):
    """One message and its history. Times are in ms since the epoch.

    Attributes:
        state: Current state, such as `pending`, `delivered` or `cancelled`.
        reason: Explanation of the state; may be empty.
        topic, queue_id: Topic and queue to which the message is delivered.
        level: Delay level; None: the message has none.
        due_ms: Latest due time; None: no due time, or unknown.
        delivered_ms: Store time of the delivery; None: not delivered, or unknown.
        schedule: Recurring schedule of which the message is an occurrence; None: of none.
        planned_ms: Planned time of the occurrence; jitter and catch-up can make it due later.
        next_ms: Planned time of the schedule's next occurrence; None: there is none.
        body_bytes: Size of the complete body in bytes; `body` may be shorter.
        records: Records of the message in the log, oldest first.
        pops: Pops that are not acknowledged.
        broker: Name of the broker; the client sets it.
    """

    broker: str = ""
    state: str
    reason: str = ""
    topic: str
    queue_id: int | None = None
    level: int | None = None
    due_ms: int | None = None
    delivered_ms: int | None = None
    schedule: str | None = None
    planned_ms: int | None = None
    next_ms: int | None = None
    born_ms: int
    stored_ms: int
    offset_message_id: str
    unique_key: str | None = None
    keys: str | None = None
    tags: str | None = None
    properties: dict[str, str] = {}
    body: bytes = b""
    body_bytes: int = 0
    records: list[HistoryStep] = []
    pops: list[OpenPop] = []


class HistoryResponse(msgspec.Struct):
    """Body of a response to a history request.

    Attributes:
        messages: The newest messages of the name, newest last.
        more: Whether there are older messages of the name.
        pops_omitted: Whether pops before the newest ones were not examined.
    """

    messages: list[MessageHistory]
    more: bool = False
    pops_omitted: bool = False
