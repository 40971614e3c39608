"""Transaction ids: where the half message is, so that no table of open transactions is needed.

    LOG-OFFSET '-' QUEUE-OFFSET, both in hexadecimal digits

The id proves nothing: the end of a transaction is checked against the record at that offset.
Apache's proxy keeps a table in memory instead; an id is worthless once the proxy has restarted.
"""

from __future__ import annotations

from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error
from message_store.text import decode_offset_id

DIGITS_MAX = 15


def transaction_id(offset_id: str, queue_offset: int) -> str:
    """Return the id of a transaction, from the answer to its half message."""
    return encode_transaction_id(decode_offset_id(offset_id)[2], queue_offset)


def encode_transaction_id(log_offset: int, queue_offset: int) -> str:
    """Return the id of the transaction whose half message is at these offsets."""
    return f"{log_offset:016X}-{queue_offset:X}"


def offsets_of(text: str) -> tuple[int, int]:
    """Return log offset and queue offset of a half message.

    Raises:
        V5Error: The id is not one of this broker.
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
