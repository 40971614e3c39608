"""Append of a master's log by a replica, without sockets.

python -m benchmarks.kernels.raw_append_bench [messages]

The program copies frames into the replica's buffer; the replica checks, writes and queues the
records. MB are bytes of the master's log. `loop` is the processor time of the event loop's thread,
`all` that of all threads, including the flusher and the index.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duemq.replication.default_ha import TransferStream
from duemq.replication.ha_client import RECEIVE_BYTES
from duemq.replication.layout import TRANSFER
from duemq_common.clock import SystemClock
from message_store.config import StoreConfig
from message_store.kernels.compilation import compile_and_load
from message_store.log.batch import PutBatch
from message_store.store import MessageStore

BATCH = 1_000
QUEUES = 16
HOST = (b"\x7f\0\0\1", 10_911)
REPEATS = 3
CLOCKS = (time.perf_counter, time.thread_time, time.process_time)
PIECES = {"Apache's 32 KiB": 32 << 10, "1 MiB": 1 << 20}
"""Bytes of one transfer of the master."""


def opened(root: Path, *, index: bool = True) -> MessageStore:
    """Return a store with files of default sizes; it is not open."""
    return MessageStore(StoreConfig(root_text=str(root), index_enable=index), SystemClock())


def make_log(root: Path, count: int, body_bytes: int) -> npt.NDArray[np.uint8]:
    """Return the log of a store with messages like those of a Java client."""
    with opened(root, index=False) as store:
        topics = [store.topics.add(f"bench{number}") for number in range(4)]
        for first in range(0, count, BATCH):
            batch = PutBatch(BATCH)
            for number in range(first, first + BATCH):
                key = b"UNIQ_KEY\x017F000001%024X\x02WAIT\x01true\x02TAGS\x01tag\x02" % number
                batch.add(
                    topic_index=topics[number % 4],
                    queue_id=number // 4 % (QUEUES // 4),
                    body=b"x" * body_bytes,
                    properties=key,
                    born_ms=1_700_000_000_000,
                    born_host=HOST,
                    store_host=HOST,
                )
            store.put(batch)
        return store.log.view(0, store.max_offset).copy()


def framed(log: npt.NDArray[np.uint8], piece_bytes: int) -> bytes:
    """Return the log in the frames of a master."""
    frames = bytearray()
    for offset in range(0, log.size, piece_bytes):
        part = log[offset : offset + piece_bytes]
        frames += TRANSFER.pack(offset, part.size)
        frames += part.data
    return bytes(frames)


def copy(root: Path, data: bytes, *, index: bool) -> tuple[float, float, float]:
    """Append the frames of a connection; return seconds: wall, loop's thread, all threads."""
    with opened(root, index=index) as store:
        stream, buffer = TransferStream(), bytearray(RECEIVE_BYTES)
        stream.place(0)
        view = memoryview(buffer)
        started = [clock() for clock in CLOCKS]
        for position in range(0, len(data), RECEIVE_BYTES):
            part = data[position : position + RECEIVE_BYTES]
            buffer[: len(part)] = part  # as recv_into does
            stream.feed(view[: len(part)])
            if stream.is_partial:
                continue
            while taken := store.append_raw(stream.offset, stream.pending):
                stream.take(taken)
        wall_s, loop_s, _ = (now() - then for now, then in zip(CLOCKS, started, strict=True))
        if index:
            store.index.catch_up(bytes_max=1 << 40)
        return wall_s, loop_s, time.process_time() - started[-1]


def main(count: int) -> None:
    """Measure each combination of body size and transfer size."""
    compile_and_load("send")
    for body_bytes in (100, 1_024):
        with tempfile.TemporaryDirectory(prefix="raw-") as name:
            log = make_log(Path(name) / "master", count, body_bytes)
            for label, piece_bytes in PIECES.items():
                data = framed(log, piece_bytes)
                for index in (False, True):
                    runs = [
                        copy(Path(name) / f"{label}{index}{turn}", data, index=index)
                        for turn in range(REPEATS)
                    ]
                    wall, loop, total = (
                        log.size / min(column) / 1e6 for column in zip(*runs, strict=True)
                    )
                    print(
                        f"body {body_bytes:5} B, transfers of {label:15}, "
                        f"{'with' if index else 'without'} index: {wall:6.0f} MB/s, "
                        f"loop {loop:6.0f} MB/s, all {total:6.0f} MB/s"
                    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
