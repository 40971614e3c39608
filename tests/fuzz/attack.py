"""Expensive requests of many connections while a regular client works.

    python -m tests.fuzz.attack --connections 200 --seconds 30

Each connection sends the most expensive bodies of `tests.duemq.test_costs` to the codes below, and
the batches of `tests.duemq.test_costs_of_sends`, one after the other. The command prints the
latencies of the regular client, the memory of the broker, and the number of requests as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path

import numpy as np

from duemq.net import codec
from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.errors import PeerError
from duemq_common.request import Request
from tests.duemq.test_costs import FIELDS, request_bodies
from tests.duemq.test_costs_of_sends import SENDS
from tests.fuzz.target import MIB, Target, attacked
from tests.support.duemq_server import ROOT
from tests.support.free_ports import LOOPBACK

CODES = (
    10,
    11,
    12,
    18,
    25,
    34,
    35,
    36,
    41,
    42,
    46,
    200,
    225,
    310,
    320,
    400,
    9_011,
    9_013,
    9_014,
    200_050,
    200_151,
)
BATCHES = [data for name, data in SENDS.items() if name.startswith("batch")]
CALL_S = 60.0


def decoded(data: bytes) -> Request:
    """Return the request of a frame."""
    buffer = memoryview(data)
    frame = codec.next_frame(buffer, 0, len(data))
    assert frame is not None
    request = codec.decode_frame(buffer, frame)
    assert isinstance(request, Request)
    return request


async def attack(port: int, number: int, end_s: float, counts: Counter[str]) -> None:
    """Send requests on one connection, and connect again when the broker closes it."""
    bodies = list(request_bodies().values())
    turn = number
    while time.monotonic() < end_s:
        try:
            async with RemotingClient(f"{LOOPBACK}:{port}") as client:
                while time.monotonic() < end_s:
                    turn += 1
                    code = CODES[turn % len(CODES)]
                    fields = {**FIELDS, "topic": f"T{number}", "producerGroup": "p" * 200}
                    body = bodies[turn // len(CODES) % len(bodies)]
                    request = Request(code, fields, body)
                    if code == RequestCode.SEND_BATCH_MESSAGE:
                        request = decoded(BATCHES[turn // len(CODES) % len(BATCHES)])
                    response = await client.call(request, timeout_s=CALL_S)
                    counts[f"code {response.code}"] += 1
        except (OSError, PeerError) as error:
            counts[type(error).__name__] += 1
            await asyncio.sleep(0.01)


async def attack_under_load(target: Target, connections: int, seconds: float) -> dict[str, object]:
    """Attack for some seconds; return the figures."""
    before, peak = target.anonymous_bytes, 0
    counts: Counter[str] = Counter()
    command = [sys.executable, "-m", "tests.fuzz.regular_client", str(target.port)]
    regular = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    end_s = time.monotonic() + seconds
    waiting = asyncio.gather(*(attack(target.port, n, end_s, counts) for n in range(connections)))
    while not waiting.done():
        peak = max(peak, target.anonymous_bytes)
        await asyncio.wait({waiting}, timeout=0.2)
    await waiting
    result = json.loads((await regular.communicate(b""))[0])
    took_ms = np.array(result["took_ms"])
    return {
        "calls": took_ms.size,
        "ms": {f"p{p}": round(float(np.percentile(took_ms, p)), 1) for p in (50, 99, 99.9)},
        "errors": result["errors"][:3],
        "memory MiB": [before // MIB, peak // MIB],
        "attacks": dict(counts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, attacked(Path(home)) as target:
        result = asyncio.run(attack_under_load(target, words.connections, words.seconds))
    json.dump(result, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
