"""Trace contexts in properties of messages (W3C Trace Context, version 00).

    traceparent    00-<32 digits of the trace>-<16 digits of the producer's span>-<flags>
    TRACE_CONTEXT  the same text, from the field `trace_context` of v5 clients

One search of the bytes of a batch finds the contexts of all its messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

NAMES: Final = (b"traceparent", b"TRACE_CONTEXT")
NAME_BYTES_MAX: Final = max(map(len, NAMES))
SAMPLED: Final = 1
RATIO_BITS: Final = 64
_CONTEXT: Final = re.compile(rb"\x0100-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

Data: TypeAlias = bytes | memoryview


class TraceContext(NamedTuple):
    """Trace of a message, and the span of its producer."""

    trace_id: int
    span_id: int

    def is_within(self, ratio: float) -> bool:
        """Return whether the trace is among a share of all traces, the same at each broker."""
        return (self.trace_id & ((1 << RATIO_BITS) - 1)) < ratio * (1 << RATIO_BITS)


def sampled_contexts(data: Data, ratio: float = 1.0) -> Iterator[tuple[int, TraceContext]]:
    """Yield the contexts that their producers sample, with their positions.

    Args:
        data: Property texts, possibly with other bytes between them.
        ratio: Share of the traces to yield.
    """
    for match in _CONTEXT.finditer(data):
        start = match.start()
        name = bytes(data[max(start - NAME_BYTES_MAX, 0) : start])
        context = TraceContext(int(match[1], 16), int(match[2], 16))
        is_valid = name.endswith(NAMES) and context.trace_id and context.span_id
        if is_valid and int(match[3], 16) & SAMPLED and context.is_within(ratio):
            yield start, context
