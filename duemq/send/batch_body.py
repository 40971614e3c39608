"""Body of a client's batch. MessageDecoder.decodeMessages"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from duemq.net.codes import ResponseCode
from message_store.errors import RequestError
from message_store.layout import BATCH_ENTRY_HEAD, packer

ENTRIES_MAX: Final = 32_768
ENTRY_END: Final = b"\x02"
_HEAD: Final = packer(BATCH_ENTRY_HEAD)
_PROPERTIES_LENGTH_BYTES: Final = 2


class BatchEntry(NamedTuple):
    """One message of a batch; its properties end with a separator if there are any."""

    flag: int
    body: memoryview
    properties: bytes


def batch_entries(body: bytes) -> Iterator[BatchEntry]:
    """Yield the messages of a batch body.

    Raises:
        RequestError: The body is not a batch, or has too many messages.
    """
    view, pos, count = memoryview(body), 0, 0
    while pos < len(body):
        entry, pos = _entry(view, pos)
        yield entry
        count += 1
        if count > ENTRIES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"the batch has over {ENTRIES_MAX} messages"
            )


def _entry(view: memoryview, pos: int) -> tuple[BatchEntry, int]:
    body_start = pos + _HEAD.size
    if body_start > len(view):
        raise _broken(pos, "it ends inside the head of a message")
    total, _, _, flag, body_len = _HEAD.unpack_from(view, pos)
    end = pos + total
    body_end = body_start + body_len
    properties_start = body_end + _PROPERTIES_LENGTH_BYTES
    if body_len <= 0 or properties_start > end or end > len(view):
        raise _broken(pos, f"size {total} with a body of {body_len}")
    properties_len = int.from_bytes(view[body_end:properties_start], "big")
    if properties_start + properties_len != end:
        raise _broken(pos, f"size {total} with properties of {properties_len}")
    properties = bytes(view[properties_start:end])
    if not properties.isascii():  # as clients read it: tags are hashed and matched as text
        properties = properties.decode("utf-8", "replace").encode()
    if properties and not properties.endswith(ENTRY_END):
        properties += ENTRY_END
    return BatchEntry(flag, view[body_start:body_end], properties), end


def _broken(pos: int, why: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the batch is broken at byte {pos}: {why}")
