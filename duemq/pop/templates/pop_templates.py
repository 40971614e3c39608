"""Templates of pop frames; matching frames differ in opaque number, birth time and queue only."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from duemq.pop.kernels.matching_frames import Template, read_matching
from duemq.pop.pop import PopRequest
from duemq.pop.templates.frame_templates import number_field, opaque_field, template_of
from duemq_common.request import Request

OPAQUE, BORN_MS, QUEUE = range(3)  # columns of the numbers
COLUMNS: Final = 3
_FIELDS: Final = (opaque_field(OPAQUE), number_field("bornTime", BORN_MS))
_QUEUE_FIELD: Final = number_field("queueId", QUEUE)


class PopTemplate(Struct, frozen=True):
    """Constant parts of the pops of one client, group and topic.

    Attributes:
        request: Decoded request of the frame from which the template was derived.
        arguments: Arguments of that request.
        poll_ms: Polling time of the requests, in ms.
        is_of_one_queue: Whether each frame names one queue, which is a number of the template; if
            not, the frames pop any queue.
        parts: Literals between the numbers.
    """

    request: Request
    arguments: PopRequest
    poll_ms: int
    is_of_one_queue: bool
    parts: Template

    @classmethod
    def of(cls, frame: bytes, request: Request, arguments: PopRequest) -> PopTemplate | None:
        """Return the template of a pop, None if the form of its frame is unsupported.

        Args:
            frame: JSON frame with its prefix.
            request: Decoded request of the frame.
            arguments: Arguments of the request.
        """
        is_of_one_queue = arguments.target.queue_id >= 0
        fields = (*_FIELDS, _QUEUE_FIELD) if is_of_one_queue else _FIELDS
        parts = template_of(frame, request, fields)
        if parts is None:
            return None
        template = cls(request, arguments, int(request.fields["pollTime"]), is_of_one_queue, parts)
        return template if template._is_readable(frame) else None

    def _is_readable(self, frame: bytes) -> bool:
        """Return whether the kernel reads the numbers of the decoded request."""
        numbers, ends = np.full((1, COLUMNS), -1, np.int64), np.zeros(1, np.int64)
        data = np.frombuffer(frame, np.uint8).copy()
        if read_matching(data, 0, data.size, self.parts, numbers, ends) != 1:
            return False
        fields, row = self.request.fields, numbers[0].tolist()
        texts = [str(self.request.opaque), fields["bornTime"]]
        texts.append(fields["queueId"] if self.is_of_one_queue else "-1")
        return texts == [str(number) for number in row]

    def queue_id(self, queue_id: int) -> int:
        """Return the queue of a frame from the queue number in its row."""
        return queue_id if self.is_of_one_queue else self.arguments.target.queue_id

    def request_of(self, opaque: int, born_ms: int, queue_id: int) -> Request:
        """Return the request that the codec would decode from a frame with these numbers."""
        fields = self.request.fields | {"bornTime": str(born_ms)}
        if self.is_of_one_queue:
            fields["queueId"] = str(queue_id)
        return replace(self.request, fields=fields, opaque=opaque)
