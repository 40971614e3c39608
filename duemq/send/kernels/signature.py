"""Signature and permission check of a send, compiled: HMAC-SHA1 of header values and body.

    field values, sorted by field name | body  --> HMAC-SHA1 --> Base64 == Signature

The kernel accepts a frame only if its account and topic are granted and its signature is valid.
Python decodes and checks all other frames (`duemq.auth.gate`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from duemq.send import layout
from duemq.send.kernels.sha1 import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    STATE_WORDS,
    add_block,
    add_last,
    put_digest,
)
from duemq.send.kernels.text import unescape
from duemq.send.layout import (
    KIND_NULL,
    KIND_RICH_TEXT,
    KIND_TEXT,
    SLOT_ACCESS_KEY,
    SLOT_LONG,
    SLOT_OTHER,
    SLOT_SIGNATURE,
    SPAN_END,
    SPAN_KIND,
    SPAN_START,
)
from message_store.kernels.bytes import Bytes, copy
from message_store.kernels.kernel import kernel

_SLOTS = {letter: slot for slot, letter in enumerate(layout.SEND_LETTERS)}
_SLOTS |= {name: SLOT_LONG + index for index, name in enumerate(layout.SEND_FIELDS)}
_SLOTS |= {layout.ACCESS_KEY_FIELD: SLOT_ACCESS_KEY}
SIGNED_SLOTS = np.array([_SLOTS[name] for name in sorted(_SLOTS)], np.int64)
NOT_SIGNED = np.int64(1) << SLOT_OTHER
SIGNATURE_BYTES = 28  # Base64 of a digest
PADDING = ord("=")
LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
).copy()


@kernel
def may_send(topic_index: int, grant: Any) -> bool:
    """Return whether the grant includes a topic."""
    # a direct-mapped table: a topic that lost its place goes to Python
    return grant["topics"][topic_index & (layout.GRANT_TOPICS - 1)] == topic_index


@kernel
def is_account(data: Bytes, spans: Any, seen: int, grant: Any) -> bool:
    """Return whether a header has the account of `grant` and no unknown fields."""
    needed = np.int64(1) << SLOT_ACCESS_KEY | np.int64(1) << SLOT_SIGNATURE
    # a field that the kernel does not know would be missing in the signed text
    if seen & needed != needed or seen & NOT_SIGNED:
        return False
    start = spans[SLOT_ACCESS_KEY, SPAN_START]
    size = spans[SLOT_ACCESS_KEY, SPAN_END] - start
    if spans[SLOT_ACCESS_KEY, SPAN_KIND] != KIND_TEXT or size != grant["key_len"]:
        return False
    for i in range(size):
        if data[start + i] != grant["key"][i]:
            return False
    return True


@kernel
def gather_values(data: Bytes, spans: Any, seen: int, out: Bytes) -> int:
    """Write the values sorted by field name; return the size, or -1 if a value is not text."""
    position = 0
    # AclUtils.combineRequestContent: the values in the order of the field names
    for i in range(SIGNED_SLOTS.size):
        slot = SIGNED_SLOTS[i]
        if not seen >> slot & 1:
            continue
        start, end, kind = spans[slot, SPAN_START], spans[slot, SPAN_END], spans[slot, SPAN_KIND]
        if kind == KIND_NULL:
            return -1
        if kind == KIND_RICH_TEXT:
            position = unescape(data, start, end, out, position)
            if position < 0:
                return -1
        else:
            copy(out, position, data, start, end - start)
            position += end - start
    return position


@kernel
def digest_content(data: Bytes, body: int, end: int, size: int, signing: Any, grant: Any) -> None:
    """Write the HMAC of signing.values[:size] and data[body:end] to signing.digest."""
    state, words, values = signing["state"], signing["words"], signing["values"]
    # the inner hash continues after the inner key block
    for i in range(STATE_WORDS):
        state[i] = grant["inner"][i]
    # the padding has the length of the key block, too, which the state already contains
    total = BLOCK_BYTES + size + end - body
    # fill the last block of the values with the begin of the body
    taken = min(-size % BLOCK_BYTES, end - body)
    copy(values, size, data, body, taken)
    size += taken
    body += taken
    # the values are complete blocks now, unless the body ends inside one
    for pos in range(0, size - BLOCK_BYTES + 1, BLOCK_BYTES):
        add_block(state, words, values, pos)
    while end - body >= BLOCK_BYTES:
        add_block(state, words, data, body)
        body += BLOCK_BYTES
    used = size % BLOCK_BYTES  # nonzero if the body ends inside a block
    copy(signing["last"], 0, values, size - used, used)
    copy(signing["last"], used, data, body, end - body)
    add_last(state, words, signing["last"], used + end - body, total)
    put_digest(signing["digest"], state)
    # the outer hash is that of the outer key block and the inner digest
    for i in range(STATE_WORDS):
        state[i] = grant["outer"][i]
    copy(signing["last"], 0, signing["digest"], 0, DIGEST_BYTES)
    add_last(state, words, signing["last"], DIGEST_BYTES, BLOCK_BYTES + DIGEST_BYTES)
    put_digest(signing["digest"], state)


@kernel
def is_base64_of(data: Bytes, pos: int, digest: Bytes) -> bool:
    """Return whether data[pos:pos+28] is the Base64 text of a digest, in constant time."""
    wrong = np.uint8(0)
    for group in range(7):
        first = np.int64(digest[3 * group])
        second = np.int64(digest[3 * group + 1])
        third = np.int64(digest[3 * group + 2]) if group < 6 else 0
        start = pos + 4 * group
        # all characters are compared, so the time does not depend on the first difference
        wrong |= data[start] ^ LETTERS[first >> 2]
        wrong |= data[start + 1] ^ LETTERS[(first & 3) << 4 | second >> 4]
        wrong |= data[start + 2] ^ LETTERS[(second & 15) << 2 | third >> 6]
        wrong |= data[start + 3] ^ (LETTERS[third & 63] if group < 6 else np.uint8(PADDING))
    return wrong == 0


@kernel
def is_signed(
    data: Bytes, body: int, end: int, spans: Any, seen: int, signing: Any, grant: Any
) -> bool:
    """Return whether the account of `grant` signed a frame; False: Python must check it."""
    start, stop = spans[SLOT_SIGNATURE, SPAN_START], spans[SLOT_SIGNATURE, SPAN_END]
    if not is_account(data, spans, seen, grant):
        return False
    if spans[SLOT_SIGNATURE, SPAN_KIND] != KIND_TEXT or stop - start != SIGNATURE_BYTES:
        return False
    size = gather_values(data, spans, seen, signing["values"])
    if size < 0:
        return False
    digest_content(data, body, end, size, signing, grant)
    return is_base64_of(data, start, signing["digest"])
