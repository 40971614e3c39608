"""Receipt handles of popped messages: `extraInfo` in requests, POP_CK in messages.

    start offset, pop time, invisible time, revive queue, retry flag, broker, queue [, offset]

A handle consists of seven or eight texts, separated by blanks. Clients can forge handles, so each
value is checked where it is used.

Source: ExtraInfoUtil
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from duemq.net.retry_topics import retry_flag
from duemq.pop.names import ORDER_QUEUE, REVIVE_QUEUES

HANDLE_CHARS_MAX: Final = 1_024
PARTS: Final = 7
NUMBER_DIGITS_MAX: Final = 18
RECEIPT_PROPERTY: Final = "POP_CK"


class ReceiptError(ValueError):
    """Text that is not a receipt handle of this broker."""


class ForeignReceipt(ReceiptError):
    """Receipt handle of another broker."""


class Receipt(Struct, frozen=True):
    """Parsed receipt handle without the message's offset: one pop of one queue.

    Attributes:
        start_offset: Queue offset of the checkpoint's first message.
        pop_ms: Time of the pop, in ms since the epoch.
        invisible_ms: Invisible time, in ms from the pop.
        revive_queue: Queue of the checkpoint in the revive topic; ORDER_QUEUE for orderly pops.
        retry: Flag of the message's topic; see `retry_topics.topic_of_flag`.
    """

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker_name: str
    queue_id: int

    @property
    def visible_ms(self) -> int:
        """Time from which the message is visible to other consumers, in ms since the epoch."""
        return self.pop_ms + self.invisible_ms

    @property
    def is_orderly(self) -> bool:
        return self.revive_queue == ORDER_QUEUE

    def text(self, offset: int) -> str:
        """Return the handle of the message at a queue offset."""
        numbers = self.start_offset, self.pop_ms, self.invisible_ms, self.revive_queue
        return " ".join(
            [*map(str, numbers), self.retry, self.broker_name, str(self.queue_id), str(offset)]
        )


def parse_receipt(text: str, broker_name: str) -> Receipt:
    """Parse a receipt handle.

    Args:
        broker_name: Name of this broker.
    Raises:
        ReceiptError: The handle is malformed.
        ForeignReceipt: The handle names another broker.
    """
    if len(text) > HANDLE_CHARS_MAX:
        raise ReceiptError(f"{len(text)} characters; the limit is {HANDLE_CHARS_MAX}")
    parts = text.split(" ")
    if len(parts) < PARTS:
        raise ReceiptError(f"{len(parts)} parts instead of {PARTS + 1}")
    receipt = Receipt(
        start_offset=_number(parts[0], "checkpoint offset"),
        pop_ms=_number(parts[1], "pop time"),
        invisible_ms=_number(parts[2], "invisible time"),
        revive_queue=_number(parts[3], "revive queue"),
        retry=parts[4],
        broker_name=parts[5],
        queue_id=_number(parts[6], "queue"),
    )
    check_revive_queue(receipt.revive_queue)
    if receipt.broker_name != broker_name:
        raise ForeignReceipt(f"made by broker {parts[5][:64]!r}; this broker is {broker_name!r}")
    return receipt


def check_revive_queue(queue_id: int) -> None:
    """Check a revive queue from a client.

    Raises:
        ReceiptError: The queue does not exist.
    """
    if not (0 <= queue_id < REVIVE_QUEUES or queue_id == ORDER_QUEUE):
        raise ReceiptError(f"revive queue {queue_id} does not exist")


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise ReceiptError(f"the {name} is not a number: {text[:32]!r}")
    return int(text)


def start_offset_info(starts: Iterable[tuple[str, int, int]]) -> str:
    """Return the field startOffsetInfo of a pop response.

    Args:
        starts: Topic, queue and first queue offset of each queue with messages.
    """
    return ";".join(f"{retry_flag(topic)} {queue} {start}" for topic, queue, start in starts)


def message_offset_info(messages: Iterable[tuple[str, int, Iterable[int]]]) -> str:
    """Return the field msgOffsetInfo of a pop response.

    Args:
        messages: Topic, queue and queue offsets of the messages of each queue.
    """
    return ";".join(
        f"{retry_flag(topic)} {queue} {','.join(map(str, offsets))}"
        for topic, queue, offsets in messages
    )
