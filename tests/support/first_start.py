"""Measurement of a first start, from the process to the first accepted send.

    python -m tests.support.first_start             kernel cache in a new temporary directory
    python -m tests.support.first_start DIRECTORY   kernel cache in a given directory

The program prints the seconds until a send is accepted, until a message of level 1 and a timer are
delivered, and until all kernels are compiled.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from time import monotonic

from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq_common.request import Request
from message_store.kernels import CACHE_VARIABLE
from message_store.log.properties import encode_properties
from tests.support.free_ports import free_ports
from tests.support.packages import TOP

TIMEOUT_S = 300.0
PAUSE_S = 0.05
CONF = """\
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort={port}
vipChannelEnable=false
metricsExporterType=DISABLE
messageDelayLevel=1s
storePathRootDir={root}
"""


async def main(cache: Path, directory: Path) -> None:
    """Start a broker, send to it, print the times and stop it."""
    port, _ = free_ports(2)  # replicas connect to the second
    (directory / "broker.conf").write_text(CONF.format(port=port, root=directory / "store"))
    started = monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "duemq",
        "broker",
        "-c",
        str(directory / "broker.conf"),
        cwd=TOP,
        env={**os.environ, CACHE_VARIABLE: str(cache)},
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await _use(f"127.0.0.1:{port}", started)
            while not list(cache.glob("complete-*")):  # noqa: ASYNC110, ASYNC240 - other process
                await asyncio.sleep(PAUSE_S)
            _report("all kernels are compiled", started)
    finally:
        process.terminate()
        await process.wait()


async def _use(address: str, started: float) -> None:
    async with RemotingClient(address) as client:
        while True:
            try:
                response = await client.call(_send("plain", {}), timeout_s=TIMEOUT_S)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            break
        assert response.code == 0, response.remark
        _report("first send is accepted", started)
        for topic, delay in (("level", {"DELAY": "1"}), ("timer", {"TIMER_DELAY_MS": "1000"})):
            response = await client.call(_send(topic, delay), timeout_s=TIMEOUT_S)
            assert response.code == 0, response.remark
        for topic in ("level", "timer"):
            while await _end(client, topic) < 1:  # noqa: ASYNC110 - another process
                await asyncio.sleep(PAUSE_S)
            _report(f"first {topic} is delivered", started)


async def _end(client: RemotingClient, topic: str) -> int:
    request = Request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    return int(((await client.call(request, timeout_s=TIMEOUT_S)).fields or {}).get("offset", 0))


def _send(topic: str, properties: dict[str, str]) -> Request:
    text = encode_properties({"UNIQ_KEY": "F", **properties}).decode()
    values = ("g", topic, "TBW102", "1", "0", "0", "1", "0", text, "0", "false", "0", "false")
    fields = dict(zip("abcdefghijklm", values, strict=True))
    return Request(RequestCode.SEND_MESSAGE_V2, fields, b"body", version=479)


def _report(step: str, started: float) -> None:
    sys.stdout.write(f"{monotonic() - started:6.1f} s  {step}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="duemq-first-start-") as here:
        kept = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(here) / "kernels"
        asyncio.run(main(kept, Path(here)))
