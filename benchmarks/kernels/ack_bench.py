"""Decoding of acknowledgements by the kernel and by the codec, without sockets and disk.

python -m benchmarks.kernels.ack_bench [frames per call]
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.kernels.ingest_bench import measure
from duemq.net import codec
from duemq.pop.kernels.acks import COLUMNS
from duemq.pop.kernels.matching_frames import read_matching
from duemq.pop.templates.ack_templates import AckTemplate
from duemq_common.codes import RequestCode
from duemq_common.request import Request


def acknowledgement(opaque: int) -> Request:
    """Return an acknowledgement request as the Java client encodes it."""
    queue_id, offset = opaque % 4, 1_000_000 + opaque
    handle = f"{offset - offset % 32} 1700000000000 60000 {opaque % 8} 0 broker-a {queue_id}"
    fields = {
        "consumerGroup": "g_bench",
        "extraInfo": f"{handle} {offset}",
        "offset": str(offset),
        "queueId": str(queue_id),
        "topic": "bench",
    }
    return Request(RequestCode.ACK_MESSAGE, fields, opaque=opaque)


def main(count: int) -> None:
    """Measure kernel and codec with `count` frames per call."""
    frames = [codec.encode_request(acknowledgement(opaque)) for opaque in range(count)]
    template = AckTemplate.of(frames[0], acknowledgement(0))
    assert template is not None
    parts = template.parts
    data = np.frombuffer(b"".join(frames), np.uint8).copy()
    numbers, ends = np.zeros((count, COLUMNS), np.int64), np.zeros(count, np.int64)
    assert read_matching(data, 0, data.size, parts, numbers, ends) == count
    print(f"{count} frames of {data.size // count} bytes a call")

    def by_kernel() -> None:
        read_matching(data, 0, data.size, parts, numbers, ends)

    def by_codec() -> None:
        position = 0
        while (frame := codec.next_frame(data.data, position, data.size)) is not None:
            codec.decode_frame(data.data, frame)
            position = frame.end

    def templates() -> None:
        AckTemplate.of(frames[0], acknowledgement(0))

    measure("acknowledgements, kernel", count, by_kernel)
    measure("acknowledgements, codec", count, by_codec)
    measure("template of a frame", 1, templates)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
