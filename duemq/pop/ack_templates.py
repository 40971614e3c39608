"""Templates of acknowledgement frames: which bytes of a client's frames are numbers.

A client's acknowledgements of one topic differ only in numbers: queue, offset, handle, opaque. The
first is decoded by the codec, and its template found; the kernel reads those that follow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from delivery.plugin import Request
from duemq.net.layout import PREFIX_BYTES
from duemq.pop.kernels.alike import Template, take_alike
from message_store.kernels.bytes import Bytes

# Columns of the numbers; the last two repeat the queue and the offset at the end of the handle.
OPAQUE, QUEUE, OFFSET, START, POP_MS, INVISIBLE_MS, REVIVE_QUEUE, HANDLE_QUEUE, HANDLE_OFFSET = (
    range(9)
)
COLUMNS: Final = 9
HEADER_BYTES_MAX: Final = 4_096
_NUMBER: Final = rb"(0|[1-9][0-9]{0,17})"
_HANDLE: Final = b" ".join([_NUMBER] * 4 + [rb'[0-9] [^ "\\\\]+'] + [_NUMBER] * 2)
_FIELDS: Final = (
    (b'"opaque"', b":" + _NUMBER + b"(?=[,}])", (OPAQUE,)),
    (b'"queueId"', b':"' + _NUMBER + b'(?=")', (QUEUE,)),
    (b'"offset"', b':"' + _NUMBER + b'(?=")', (OFFSET,)),
    (
        b'"extraInfo"',
        b':"' + _HANDLE + b'(?=")',
        (START, POP_MS, INVISIBLE_MS, REVIVE_QUEUE, HANDLE_QUEUE, HANDLE_OFFSET),
    ),
)
_PATTERNS: Final = tuple((name, re.compile(name + value), columns)
                         for name, value, columns in _FIELDS)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AckTemplate:
    """What all acknowledgements of one client and topic share."""

    group: str
    topic: str
    broker_name: str
    parts: Template

    @classmethod
    def of(cls, frame: bytes, request: Request) -> AckTemplate | None:
        """Return the template of an acknowledgement, None if its frame has another form.

        Args:
            frame: The whole frame, with its prefix.
            request: What the codec decoded.
        """
        header = frame[PREFIX_BYTES:]
        if len(header) > HEADER_BYTES_MAX or len(request.body) or not _is_plain(header, request):
            return None
        spans: list[tuple[int, int, int]] = []
        for name, pattern, columns in _PATTERNS:
            match = pattern.search(header)
            if match is None or header.count(name) != 1:
                return None
            spans += [(*match.span(at), column) for at, column in enumerate(columns, 1)]
        spans.sort()
        fields = request.fields
        found = cls(
            fields["consumerGroup"],
            fields["topic"],
            fields["extraInfo"].split(" ")[5],
            _parts(header, spans),
        )
        return found if found._reads(frame, request) else None

    def _reads(self, frame: bytes, request: Request) -> bool:
        """Return whether the kernel finds the numbers of the decoded request."""
        numbers, ends = np.zeros((1, COLUMNS), np.int64), np.zeros(1, np.int64)
        data = np.frombuffer(frame, np.uint8).copy()
        if take_alike(data, 0, data.size, self.parts, numbers, ends) != 1:
            return False
        fields, row = request.fields, numbers[0].tolist()
        handle = fields["extraInfo"].split(" ")
        texts = [str(request.opaque), fields["queueId"], fields["offset"], *handle[:4], *handle[6:]]
        return texts == [str(number) for number in row]


def _is_plain(header: bytes, request: Request) -> bool:
    """Return whether each name in a header can be only what the codec reads by that name.

    No escapes, so a name has one spelling; no objects but the header and its fields.
    """
    return (
        b"\\" not in header
        and header.count(b"{") == header.count(b"}") == 2
        and "opaque" not in request.fields
    )


def _parts(header: bytes, spans: list[tuple[int, int, int]]) -> Template:
    starts = [0, *(end for _, end, _ in spans)]
    literals = [
        header[start:end]
        for start, end in zip(starts, [*(start for start, _, _ in spans), len(header)], strict=True)
    ]
    text: Bytes = np.frombuffer(b"".join(literals), np.uint8).copy()
    ends = np.cumsum([len(literal) for literal in literals]).astype(np.int64)
    return Template(text, ends, np.array([column for *_, column in spans], np.int64))
