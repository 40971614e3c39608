"""Subscriptions of a push consumer: a topic, its filter, and the handler of its messages."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

from duemq.client.filters import Filter

DEAD_LETTER: Final = -1  # delay level of a message that goes to the dead letters at once

MessageHandler = Callable[[Any], Awaitable[object] | object]
"""Handles one ReceivedMessage, or a list of them; a plain function runs in a thread."""


class Retry(Exception):
    """Raised by a handler: deliver the message again later.

    Args:
        level: Delay level; 0: the broker increases it with each attempt; `DEAD_LETTER`: no further
            attempt. A consumer of ordered messages has one delay, and uses only `DEAD_LETTER`.
    """

    def __init__(self, level: int = 0) -> None:
        super().__init__(f"the handler retries the message at level {level}")
        self.level = level


class ConsumeFrom(Enum):
    """First message of a group that has no committed offset. ConsumeFromWhere"""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    LAST = "CONSUME_FROM_LAST_OFFSET"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a push consumer.

    Attributes:
        ordered: Whether each queue is locked and handled in order, one message at a time.
        offsets_file: File of the offsets of a broadcast consumer; None: the group shares the
            messages, and brokers keep its offsets.
        consume_from: First message of a new group; a time has a zone.
        retries_max: Retries before a message goes to the dead letters; None: 16, without limit if
            `ordered`.
        handlers_max: Handlers that run at the same time.
        retry_s: Delay of a retry of an ordered message in seconds.
        poll_s: Time that a broker holds a pull of a queue without messages, in seconds.
        queue_messages_max, queue_bytes_max: Messages of one queue that are pulled and not handled.
        messages_max, bytes_max: The same for all queues.
        close_s: Time that handlers have to finish at `close`, in seconds.
        rebalance_s, commit_s: Intervals in seconds.
    Raises:
        ValueError: A value is out of range.
    """

    ordered: bool = False
    offsets_file: Path | None = None
    consume_from: ConsumeFrom | datetime = ConsumeFrom.LAST
    retries_max: int | None = None
    handlers_max: int = 32
    retry_s: float = 1.0
    poll_s: float = 15.0
    queue_messages_max: int = 1_000
    queue_bytes_max: int = 16 << 20
    messages_max: int = 16_000
    bytes_max: int = 128 << 20
    close_s: float = 10.0
    rebalance_s: float = 20.0
    commit_s: float = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.consume_from, datetime) and self.consume_from.tzinfo is None:
            raise ValueError(f"consume_from {self.consume_from.isoformat()} has no time zone")
        for name in ("handlers_max", "queue_messages_max", "queue_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; the minimum is 1")

    @property
    def is_broadcast(self) -> bool:
        """Whether every consumer of the group gets all messages."""
        return self.offsets_file is not None

    @property
    def has_locks(self) -> bool:
        """Whether a queue is locked before it is pulled."""
        return self.ordered and not self.is_broadcast


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """Subscription of one topic.

    Attributes:
        version: Time of the subscription in ms; a broker keeps the newest.
        batch: Maximum messages of one call of the handler, as a list; 0: one message, no list.
        is_async: Whether the handler is a coroutine function.
    """

    topic: str
    handler: MessageHandler
    only: Filter
    version: int
    batch: int
    is_async: bool


def subscription_of(
    topic: str, handler: MessageHandler, only: Filter | str, version: int, batch: int
) -> TopicSubscription:
    """Return a subscription.

    Raises:
        ValueError: The topic is empty, or the size of a batch is negative.
    """
    if not topic:
        raise ValueError("the topic is empty")
    if batch < 0:
        raise ValueError(f"batch is {batch}; give the maximum number of messages")
    call = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    messages = only if isinstance(only, Filter) else Filter(only)
    is_async = inspect.iscoroutinefunction(call)
    return TopicSubscription(topic, handler, messages, version, batch, is_async)
