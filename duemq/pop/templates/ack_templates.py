"""Templates of acknowledgement frames.

Matching frames differ in queue, offset, receipt handle and opaque number only.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from duemq.pop.kernels.acks import (
    COLUMNS,
    HANDLE_OFFSET,
    HANDLE_QUEUE,
    INVISIBLE_MS,
    OFFSET,
    OPAQUE,
    POP_MS,
    QUEUE,
    REVIVE_QUEUE,
    START,
)
from duemq.pop.kernels.matching_frames import Template, read_matching
from duemq.pop.templates.frame_templates import (
    NUMBER,
    NumberField,
    number_field,
    opaque_field,
    template_of,
)
from duemq_common.request import Request

_HANDLE: Final = b" ".join([NUMBER] * 4 + [rb'[0-9] [^ "\\\\]+'] + [NUMBER] * 2)
_FIELDS: Final = (
    opaque_field(OPAQUE),
    number_field("queueId", QUEUE),
    number_field("offset", OFFSET),
    NumberField(
        b'"extraInfo"',
        re.compile(b'"extraInfo":"' + _HANDLE + b'(?=")'),
        (START, POP_MS, INVISIBLE_MS, REVIVE_QUEUE, HANDLE_QUEUE, HANDLE_OFFSET),
    ),
)


class AckTemplate(Struct, frozen=True):
    """Constant parts of the acknowledgements of one client, group and topic."""

    group: str
    topic: str
    broker_name: str
    parts: Template

    @classmethod
    def of(cls, frame: bytes, request: Request) -> AckTemplate | None:
        """Return the template of an acknowledgement, None if the form of its frame is unsupported.

        Args:
            frame: JSON frame with its prefix.
            request: Decoded request of the frame.
        """
        parts = template_of(frame, request, _FIELDS)
        if parts is None:
            return None
        fields = request.fields
        template = cls(
            fields["consumerGroup"],
            fields["topic"],
            fields["extraInfo"].split(" ")[5],
            parts,
        )
        return template if template._is_readable(frame, request) else None

    def _is_readable(self, frame: bytes, request: Request) -> bool:
        """Return whether the kernel reads the numbers of the decoded request."""
        numbers, ends = np.zeros((1, COLUMNS), np.int64), np.zeros(1, np.int64)
        data = np.frombuffer(frame, np.uint8).copy()
        if read_matching(data, 0, data.size, self.parts, numbers, ends) != 1:
            return False
        fields, row = request.fields, numbers[0].tolist()
        handle = fields["extraInfo"].split(" ")
        texts = [str(request.opaque), fields["queueId"], fields["offset"], *handle[:4], *handle[6:]]
        return texts == [str(number) for number in row]
