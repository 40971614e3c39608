"""Application that embeds a broker and has packages with common names.

`tests/test_wheel.py` runs a copy of this file next to these packages, with the installed wheel.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path

from duemq import Broker, Message, Producer, PullConsumer
from duemq.client import Client
from duemq_common.codes import RequestCode

OWN_PACKAGES = "delivery", "migration", "reconciliation", "common", "config", "tests"
PROPERTIES = {
    "brokerIP1": "127.0.0.1",
    "listenPort": "0",
    "haListenPort": "0",
    "metricsExporterType": "DISABLE",
    "messageDelayLevel": "1s",
}
TIMEOUT_S = 120.0  # a kernel may have to be compiled


async def main(root: str) -> None:
    """Send a delayed message; print its body and the plugins of the broker."""
    async with (
        Broker(PROPERTIES | {"storePathRootDir": root}) as broker,
        Client(broker=broker.address, timeout_s=TIMEOUT_S) as client,
    ):
        sent = await Producer(client=client).send(Message("T", b"delayed", level=1))
        reader = PullConsumer(group="g", client=client)
        [message] = (await reader.pull(sent.queue, 0, wait_s=TIMEOUT_S)).messages
        sys.stdout.write(f"{message.body.decode()} {' '.join(sorted(broker.plugins.plugins))}\n")
        await client.ask(broker.address, RequestCode.GET_VIEW, {"view": "migration.status"})
    for name in ("duemq", "duemq_migration.plugin"):
        sys.stdout.write(f"{import_module(name).__file__}\n")
    for name in OWN_PACKAGES:
        assert Path(import_module(name).__file__ or "").parent == Path(__file__).parent / name


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
