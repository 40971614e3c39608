"""Regular client in a separate process: `python -m tests.fuzz.regular_client PORT`.

The client sends and pulls until its standard input ends, at least `CALLS_MIN` times. It then prints
latencies and errors as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from duemq.net.client import RemotingClient
from duemq_common.errors import PeerError
from duemq_common.request import Request

PAUSE_S = 0.005
CALL_S = 60.0
CALLS_MIN = 200
SEND = {
    **{"a": "regular_group", "b": "regular", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1"},
    **{"h": "0", "i": "K\x01v\x02", "j": "0", "k": "false", "m": "false"},
}
PULL = {
    "consumerGroup": "regular_group",
    "topic": "regular",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "8",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}


async def call_until_end(port: int) -> dict[str, object]:
    """Call until standard input ends; return latencies in ms and errors."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    took_ms: list[float] = []
    errors: list[str] = []
    async with RemotingClient(f"127.0.0.1:{port}") as client:
        while not ended.done() or len(took_ms) < CALLS_MIN:
            for request in (Request(310, dict(SEND), b"x" * 100), Request(11, dict(PULL))):
                began = time.perf_counter()
                try:
                    response = await client.call(request, timeout_s=CALL_S)
                    if response.code:
                        errors.append(
                            f"{request.code}: code {response.code} {response.remark}"[:200]
                        )
                except (OSError, PeerError) as error:
                    errors.append(f"{request.code}: {error!r}"[:200])
                took_ms.append((time.perf_counter() - began) * 1_000)
            await asyncio.sleep(PAUSE_S)
    return {"took_ms": took_ms, "errors": errors}


if __name__ == "__main__":
    json.dump(asyncio.run(call_until_end(int(sys.argv[1]))), sys.stdout)
