"""Receipt handles of popped messages: `extraInfo` in requests, POP_CK in messages. ExtraInfoUtil.

    start offset, pop time, invisible time, revive queue, retry flag, broker, queue [, offset]

Eight texts separated by blanks. A handle proves nothing: each value is checked where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from duemq.pop.names import ORDER_QUEUE, REVIVE_QUEUES, retry_flag

HANDLE_CHARS_MAX: Final = 1_024
PARTS: Final = 7
NUMBER_DIGITS_MAX: Final = 18
RECEIPT_PROPERTY: Final = "POP_CK"


class ReceiptError(ValueError):
    """A text that is not a receipt handle of this broker."""


class ForeignReceipt(ReceiptError):
    """A receipt handle of another broker."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One pop of one queue.

    Attributes:
        start_offset: Queue offset of the checkpoint's first message.
        revive_queue: Queue of the checkpoint in the revive topic; ORDER_QUEUE for orderly pops.
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
        """Time from which the message is visible to other consumers."""
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
    """Return the receipt in a handle.

    Raises:
        ReceiptError: It is malformed.
        ForeignReceipt: It is another broker's.
    """
    if len(text) > HANDLE_CHARS_MAX:
        raise ReceiptError(f"it has {len(text)} characters; the limit is {HANDLE_CHARS_MAX}")
    parts = text.split(" ")
    if len(parts) < PARTS:
        raise ReceiptError(f"it has {len(parts)} parts, not {PARTS + 1}")
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
        raise ForeignReceipt(f"it names broker {parts[5][:64]!r}; this is {broker_name!r}")
    return receipt


def check_revive_queue(queue_id: int) -> None:
    """Check the revive queue that a client names.

    Raises:
        ReceiptError: There is none.
    """
    if not (0 <= queue_id < REVIVE_QUEUES or queue_id == ORDER_QUEUE):
        raise ReceiptError(f"there is no revive queue {queue_id}")


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX):
        raise ReceiptError(f"its {name} is not a number: {text[:32]!r}")
    return int(text)


def start_offset_info(pieces: Iterable[tuple[str, int, int]]) -> str:
    """Return the answer's startOffsetInfo for (topic, queue, first offset)."""
    return ";".join(f"{retry_flag(topic)} {queue} {start}" for topic, queue, start in pieces)


def message_offset_info(pieces: Iterable[tuple[str, int, Iterable[int]]]) -> str:
    """Return the answer's msgOffsetInfo for (topic, queue, offsets of its messages)."""
    return ";".join(
        f"{retry_flag(topic)} {queue} {','.join(map(str, offsets))}"
        for topic, queue, offsets in pieces
    )
