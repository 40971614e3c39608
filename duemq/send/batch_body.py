"""Decoder of a client's batch body. MessageDecoder.decodeMessages"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from message_store.log.layout import BATCH_ENTRY_HEAD

ENTRIES_MAX: Final = 16_384  # of a batch
WORD_BYTES: Final = 4  # of the size of a message
ENTRY_END: Final = b"\x02"
_PROPERTIES_LENGTH_BYTES: Final = 2


class BatchEntry(NamedTuple):
    """Message of a batch; `properties` is empty or ends with a separator."""

    flag: int
    body: memoryview
    properties: bytes


def batch_entries(body: bytes) -> Iterator[BatchEntry]:
    """Yield the messages of a batch body.

    Raises:
        RequestError: The body is malformed.
    """
    view, pos = memoryview(body), 0
    while pos < len(body):
        entry, pos = _entry(view, pos)
        yield entry


def count_entries(body: bytes) -> int:
    """Return the number of messages of a batch body, before any of them is decoded.

    Raises:
        RequestError: There are more than ENTRIES_MAX.
    """
    view, pos = memoryview(body), 0
    for count in range(ENTRIES_MAX + 1):
        if pos >= len(view):
            return count
        pos += max(int.from_bytes(view[pos : pos + WORD_BYTES], "big"), 1)
    raise RequestError(
        ResponseCode.MESSAGE_ILLEGAL, f"the batch has more than {ENTRIES_MAX} messages"
    )


def _entry(view: memoryview, pos: int) -> tuple[BatchEntry, int]:
    body_start = pos + BATCH_ENTRY_HEAD.size
    if body_start > len(view):
        raise _malformed(pos, "the batch ends inside a message header")
    total, _, _, flag, body_len = BATCH_ENTRY_HEAD.unpack_from(view, pos)
    end = pos + total
    body_end = body_start + body_len
    properties_start = body_end + _PROPERTIES_LENGTH_BYTES
    if body_len <= 0 or properties_start > end or end > len(view):
        raise _malformed(pos, f"message size {total}, body size {body_len}")
    properties_len = int.from_bytes(view[body_end:properties_start], "big")
    if properties_start + properties_len != end:
        raise _malformed(pos, f"message size {total}, properties size {properties_len}")
    properties = bytes(view[properties_start:end])
    # Clients replace invalid UTF-8. The stored text must be the one that they decode, because the
    # tags code is the hash of the decoded tag.
    if not properties.isascii():
        properties = properties.decode("utf-8", "replace").encode()
    if properties and not properties.endswith(ENTRY_END):
        properties += ENTRY_END
    return BatchEntry(flag, view[body_start:body_end], properties), end


def _malformed(pos: int, reason: str) -> RequestError:
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL, f"the batch is malformed at byte {pos}: {reason}"
    )
