"""Cancels by key, one request each, while a regular client works.

    python -m tests.fuzz.cancels --timers 100000

One connection sends timers that are due in the same millisecond, then cancels each of them by its
key, with many requests in flight. The command prints the processor time of the broker per cancel,
and the latencies of the regular client, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from duemq.net.client import RemotingClient
from duemq.net.connection import Connection
from duemq_common.request import Request
from tests.fuzz.regular_client import SEND
from tests.fuzz.target import Target, attacked
from tests.support.duemq_server import ROOT
from tests.support.free_ports import LOOPBACK

IN_FLIGHT = 4_000
DUE_S = 3_600
CALL_S = 120.0


def timer(number: int, due_ms: int) -> Request:
    """Return a send of a timer with the key k`number`."""
    properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02KEYS\x01k{number}\x02UNIQ_KEY\x01U{number}"
    return Request(310, {**SEND, "b": "cancelled", "i": properties}, b"x")


def cancel(number: int) -> Request:
    """Return a cancel of the timer with the key k`number`."""
    return Request(9_011, {}, msgspec.json.encode({"topic": "cancelled", "keys": [f"k{number}"]}))


def processor_s(target: Target) -> float:
    """Return the processor time that the broker has used, in s."""
    fields = Path(f"/proc/{target.child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def call_all(connection: Connection, requests: list[Request]) -> Counter[str]:
    """Send requests with many in flight; count the responses by their verdict."""
    verdicts: Counter[str] = Counter()
    for first in range(0, len(requests), IN_FLIGHT):
        part = requests[first : first + IN_FLIGHT]
        calls = [connection.call(each, timeout_s=CALL_S) for each in part]
        for response in await asyncio.gather(*calls):
            body = msgspec.json.decode(response.body) if response.body else {}
            verdicts[body["results"][0]["verdict"] if body else f"code {response.code}"] += 1
    return verdicts


async def measure(target: Target, timers: int) -> dict[str, object]:
    """Send and cancel timers; return the figures."""
    due_ms = int(time.time() + DUE_S) * 1_000
    async with RemotingClient(f"{LOOPBACK}:{target.port}") as client:
        connection = await client.connect()
        await call_all(connection, [timer(number, due_ms) for number in range(timers)])
        command = [sys.executable, "-m", "tests.fuzz.regular_client", str(target.port)]
        regular = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
        before_s, begin_s = processor_s(target), time.monotonic()
        verdicts = await call_all(connection, [cancel(number) for number in range(timers)])
        took_s, used_s = time.monotonic() - begin_s, processor_s(target) - before_s
        result = json.loads((await regular.communicate(b""))[0])
    return {
        "seconds": round(took_s, 1),
        "processor us per cancel": round(used_s / timers * 1e6, 1),
        "verdicts": dict(verdicts),
        "ms": {f"p{p}": round(float(np.percentile(result["took_ms"], p)), 1) for p in (50, 99)},
        "errors": result["errors"][:3],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timers", type=int, default=100_000)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, attacked(Path(home)) as target:
        result = asyncio.run(measure(target, words.timers))
    json.dump(result, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
