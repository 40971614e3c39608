"""Bodies of requests that send messages, and of their responses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.client import Message
from duemq.http.problems import ProblemDetails

BATCH_MAX: Final = 1_000
DELAY_MS_MAX: Final = 1 << 46
LEVEL_MAX: Final = 1_000
NAME_MAX: Final = 127

Topic = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]


class NewMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Message to send; at most one of `delay_ms`, `deliver_at` and `level`.

    Attributes:
        body: Content as text.
        body_base64: Content as Base64, instead of `body`.
        tag: Tag, for filters.
        keys: Keys by which the message can be found.
        properties: Properties of the application.
        delay_ms: Delay from the arrival at the broker.
        deliver_at: Due time with a zone; in the past: delivered at once.
        level: Delay level.
        sharding_key: Messages with the same key go to the same queue, in order.
        priority: Priority of the message.
    """

    topic: Topic
    body: str = ""
    body_base64: bytes | None = None
    tag: str = ""
    keys: list[str] = []
    properties: dict[str, str] = {}
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    deliver_at: Annotated[datetime, Meta(tz=True)] | None = None
    level: Annotated[int, Meta(ge=1, le=LEVEL_MAX)] | None = None
    sharding_key: str = ""
    priority: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None

    def message(self) -> Message:
        """Return the message for the client.

        Raises:
            ValueError: A value cannot be sent.
        """
        if self.body and self.body_base64 is not None:
            raise ValueError("body and body_base64 exclude each other: give one")
        body = self.body.encode() if self.body_base64 is None else self.body_base64
        return Message(
            self.topic,
            body,
            tag=self.tag,
            keys=self.keys,
            properties=self.properties,
            delay=None if self.delay_ms is None else timedelta(milliseconds=self.delay_ms),
            deliver_at=self.deliver_at,
            level=self.level or 0,
            sharding_key=self.sharding_key,
            priority=self.priority,
        )


class SentMessage(msgspec.Struct, kw_only=True):
    """Stored message.

    Attributes:
        message_id: Unique id.
        status: `stored`, or what is missing: the disk or a replica.
        queue_offset: Position of the stored record; a delayed message gets another one.
        recall_handle: Handle that cancels a timer; empty: none.
        repeated: Whether an earlier request with the same key stored the message.
    """

    message_id: str
    status: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    offset_message_id: str
    recall_handle: str = ""
    repeated: bool = False


class NewBatch(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to send."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=BATCH_MAX)]


class BatchItem(msgspec.Struct, omit_defaults=True):
    """Result of one message: stored, or a problem."""

    message: SentMessage | None = None
    problem: ProblemDetails | None = None


class BatchResult(msgspec.Struct):
    """Results of the messages, in order.

    Attributes:
        stored: Number of stored messages.
    """

    stored: int
    results: list[BatchItem]
