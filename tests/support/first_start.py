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
from datetime import timedelta
from pathlib import Path
from time import monotonic

from duemq.client import Client, Message, NotSent, Producer, PullConsumer
from message_store.kernels import CACHE_VARIABLE
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
    async with Client(broker=address, timeout_s=TIMEOUT_S) as client:
        producer, reader = (
            Producer(client=client, retries=0),
            PullConsumer(group="g", client=client),
        )
        while True:
            try:
                await producer.send(Message("plain", b"body"))
            except NotSent:
                await asyncio.sleep(PAUSE_S)
                continue
            break
        _report("first send is accepted", started)
        messages = (
            Message("level", b"body", level=1),
            Message("timer", b"body", delay=timedelta(seconds=1)),
        )
        for queue in [(await producer.send(message)).queue for message in messages]:
            while await reader.max_offset(queue) < 1:  # noqa: ASYNC110 - another process
                await asyncio.sleep(PAUSE_S)
            _report(f"first {queue.topic} is delivered", started)


def _report(step: str, started: float) -> None:
    sys.stdout.write(f"{monotonic() - started:6.1f} s  {step}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="duemq-first-start-") as here:
        kept = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(here) / "kernels"
        asyncio.run(main(kept, Path(here)))
