"""Transaction ids that encode the position of the half message.

    LOG-OFFSET '-' QUEUE-OFFSET, both in hexadecimal digits

The broker needs no table of open transactions: EndTransaction is checked against the record at
the log offset. Apache's proxy keeps a table in memory; its ids become invalid at a restart.
"""

from __future__ import annotations

from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error
from message_store.log.offset_id import decode_offset_id

DIGITS_MAX = 15


def transaction_id(offset_id: str, queue_offset: int) -> str:
    """Return the id of a transaction.

    Args:
        offset_id: Offset id of the half message, from the response to its send.
        queue_offset: Queue offset of the half message.
    """
    return encode_transaction_id(decode_offset_id(offset_id)[2], queue_offset)


def encode_transaction_id(log_offset: int, queue_offset: int) -> str:
    """Encode the offsets of a half message as a transaction id."""
    return f"{log_offset:016X}-{queue_offset:X}"


def offsets_of(text: str) -> tuple[int, int]:
    """Decode a transaction id into the log offset and queue offset of the half message.

    Raises:
        V5Error: The id is malformed.
    """
    log_offset, _, queue_offset = text.partition("-")
    try:
        if len(log_offset) > DIGITS_MAX + 1 or len(queue_offset) > DIGITS_MAX:
            raise ValueError("too long")
        return int(log_offset, 16), int(queue_offset, 16)
    except ValueError:
        raise V5Error(
            v2.INVALID_TRANSACTION_ID, f"no transaction has the id {text[:64]!r}"
        ) from None
