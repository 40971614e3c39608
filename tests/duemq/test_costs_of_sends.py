"""Processor time of the most expensive sends of 1 MB, from the socket to the response.

The rows are the most expensive ones of each family in a search of 70 frames: properties of many,
long, malformed and reserved entries, in headers of both encodings; batches of as many messages as
are accepted, plain, with timers, markers, keys and shared properties; half messages; replies.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from pathlib import Path
from typing import Final

import pytest

from duemq.broker.broker import Broker
from duemq.net import codec
from duemq.net.layout import BINARY_TYPE, JSON_TYPE
from duemq.send import layout
from duemq.send.batch_body import ENTRIES_MAX
from duemq_common.request import Request
from message_store.kernels import registry
from tests.duemq.test_costs import STEP_MS_MAX
from tests.support.free_ports import LOOPBACK
from tests.support.loop_steps import loop_steps
from tests.support.processor_time import ROUNDS, time_factor
from tests.support.running_broker import small

BODY = bytes(700_000)
PAIRS = "a\x01b\x02"
REPLY, REPLY_V2, SEND_V2, BATCH = 324, 325, 310, 320
TIMER = "TIMER_DELAY_MS\x01100000\x02"
WAIT_S = 60.0
SIZES = {  # of files: small ones would be created within a batch
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}
KERNELS = "broker", "send", "timers", "pending_timers"


def frame(code: int, properties: str, body: bytes, encoding: int = BINARY_TYPE) -> bytes:
    values = ("p", "T", "TBW102", "4", "0", "0", "1", "0", properties, "0", "false", "16")
    names = layout.SEND_FIELDS if code == REPLY else tuple(layout.SEND_LETTERS)
    fields = dict(zip(names, (*values, str(code == BATCH).lower()), strict=False))
    return codec.encode_request(Request(code, fields, body, opaque=1), serialize_type=encoding)


def batch(shared: str = "", own: bytes = b"", count: int = ENTRIES_MAX) -> bytes:
    entry = struct.pack(">iiiiic", 23 + len(own), 0, 0, 0, 1, b"x")
    return frame(BATCH, shared, (entry + struct.pack(">h", len(own)) + own) * count)


SENDS: Final[dict[str, bytes]] = {
    "properties": frame(SEND_V2, PAIRS * 62_000, BODY),
    "properties as JSON": frame(SEND_V2, PAIRS * 15_000, BODY, JSON_TYPE),
    "separators": frame(SEND_V2, "\x02" * 250_000, BODY),
    "no values": frame(SEND_V2, "UNIQ_KEY\x01\x02" * 25_000, BODY),
    "half message": frame(SEND_V2, f"TRAN_MSG\x01true\x02{TIMER}" + PAIRS * 7_500, BODY),
    "redelivery": frame(SEND_V2, f"{TIMER}DUEMQ_DUE_MS\x011\x02" + PAIRS * 7_500, BODY),
    "batch": batch(),
    "batch with properties": batch(PAIRS * 50),
    "batch with keys": batch(own=b"KEYS\x01a b c d e f g h i j k\x02"),
    "batch of timers": batch(f"{TIMER}DUEMQ_DUE_MS\x011\x02"),
    "batch of markers": batch(f"{TIMER}TIMER_DEL_UNIQKEY\x01T+abc\x02"),
    "batch refused": batch("TIMER_DELAY_MS\x01x\x02"),
    "batch of invalid levels": batch("DELAY\x01x\x02"),
    "batch with malformed end": frame(BATCH, "", batch()[-23 * 16_000 :] + b"\0"),
    "reply": frame(REPLY, PAIRS * 62_000, BODY),
    "reply to a client": frame(REPLY_V2, "REPLY_TO_CLIENT\x01x\x02" + PAIRS * 62_000, BODY),
}


def sent(port: int, data: bytes) -> None:
    """Send a frame, and read its response."""
    with socket.create_connection((LOOPBACK, port), timeout=WAIT_S) as connection:
        connection.sendall(data)
        with connection.makefile("rb") as stream:
            assert len(stream.read(int.from_bytes(stream.read(4), "big")))


async def longest_ms(port: int, data: bytes) -> float:
    """Return the least of `ROUNDS` measurements of the longest step until the response."""
    found = []
    for _ in range(ROUNDS):
        factor = time_factor(rounds=1)  # the pages of the store's files are new each time
        with loop_steps() as steps:
            await asyncio.to_thread(sent, port, data)
        found.append(steps.longest_s * factor)
        if found[-1] <= STEP_MS_MAX / 2:
            break
    return min(found)


@pytest.mark.extended
@pytest.mark.finding("3S7")
def test_no_send_occupies_the_event_loop(tmp_path: Path) -> None:
    async def scene() -> dict[str, float]:
        async with Broker(small(tmp_path, **SIZES)) as broker:
            port = int(broker.address.rpartition(":")[2])
            await asyncio.to_thread(sent, port, frame(SEND_V2, "", b"first"))
            await asyncio.to_thread(registry.load, *KERNELS)
            gc.collect()
            return {name: await longest_ms(port, data) for name, data in SENDS.items()}

    costs = asyncio.run(scene())
    assert {name: cost for name, cost in costs.items() if cost > STEP_MS_MAX} == {}
