"""Receipt handles of v5 messages: a pop receipt followed by the log offset of the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from duemq.net.retry_topics import topic_of_flag
from duemq.pop.receipts import (
    NUMBER_DIGITS_MAX,
    ForeignReceipt,
    Receipt,
    ReceiptError,
    parse_receipt,
)
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error

OFFSET_PART: Final = 7
LOG_OFFSET_PART: Final = 8


@dataclass(frozen=True, slots=True)
class Handle:
    """Parsed receipt handle.

    Attributes:
        offset: Queue offset of the message.
        log_offset: Log offset of the record, in bytes; -1: the handle has none.
    """

    text: str
    receipt: Receipt
    offset: int
    log_offset: int

    def topic(self, topic: str, group: str) -> str:
        """Return the topic of the record: a retry topic of `topic`, or `topic` itself.

        Raises:
            V5Error: The retry flag of the handle is invalid.
        """
        try:
            return topic_of_flag(topic, group, self.receipt.retry)
        except ValueError as error:
            raise V5Error(v2.INTERNAL_SERVER_ERROR, f"receipt handle: {error}") from error


def parse_handle(text: str, broker_name: str) -> Handle:
    """Parse a receipt handle.

    Raises:
        V5Error: The handle is malformed or belongs to another broker; codes of Apache's proxy.
    """
    try:
        receipt = parse_receipt(text, broker_name)
        parts = text.split(" ")
        if len(parts) <= OFFSET_PART:
            raise ReceiptError(f"it has {len(parts)} parts, not {LOG_OFFSET_PART + 1}")
        log_offset = _number(parts[LOG_OFFSET_PART]) if len(parts) > LOG_OFFSET_PART else -1
        return Handle(text, receipt, _number(parts[OFFSET_PART]), log_offset)
    except ForeignReceipt as error:
        raise V5Error(v2.INVALID_RECEIPT_HANDLE, f"receipt handle: {error}") from error
    except ReceiptError as error:
        text = f"the receipt handle is malformed: {error}"
        raise V5Error(v2.INTERNAL_SERVER_ERROR, text) from error


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise ReceiptError(f"its offset is not a number: {text[:32]!r}")
    return int(text)


def check_not_expired(handle: Handle, now_ms: int, settled_ms: Callable[[], int]) -> None:
    """Check that a message is not visible again.

    After a stall, a message may be invisible although its invisible time is over.

    Args:
        settled_ms: Returns the revive time up to which every checkpoint is settled.
    Raises:
        V5Error: The message is visible again.
    """
    visible_ms = handle.receipt.visible_ms
    if visible_ms <= now_ms and visible_ms <= settled_ms():
        raise V5Error(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
