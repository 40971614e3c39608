"""Application that embeds a broker and has packages with common names.

`tests/test_wheel.py` runs a copy of this file next to these packages, with the installed wheel.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path

from duemq import Broker
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq_common.request import Request
from message_store.log.properties import encode_properties
from message_store.log.record import decode_record

OWN_PACKAGES = "delivery", "migration", "reconciliation", "common", "config", "tests"
PROPERTIES = {
    "brokerIP1": "127.0.0.1",
    "listenPort": "0",
    "haListenPort": "0",
    "metricsExporterType": "DISABLE",
    "messageDelayLevel": "1s",
}
SEND = {
    "producerGroup": "p",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "1",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
}
PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "30000",
    "subscription": "*",
    "subVersion": "0",
}
TIMEOUT_S = 120.0  # a kernel may have to be compiled


async def main(root: str) -> None:
    """Send a delayed message; print its body and the plugins of the broker."""
    properties = encode_properties({"DELAY": "1"}).decode()
    async with (
        Broker(PROPERTIES | {"storePathRootDir": root}) as broker,
        RemotingClient(broker.address) as client,
    ):
        send = Request(RequestCode.SEND_MESSAGE, SEND | {"properties": properties}, b"delayed")
        await client.call(send, timeout_s=TIMEOUT_S)
        pulled = await client.call(Request(RequestCode.PULL_MESSAGE, PULL), timeout_s=TIMEOUT_S)
        record = decode_record(memoryview(bytes(pulled.body)), 0)
        sys.stdout.write(f"{record.body.decode()} {' '.join(sorted(broker.plugins.plugins))}\n")
        status = await client.call(
            Request(RequestCode.GET_VIEW, {"view": "migration.status"}), timeout_s=TIMEOUT_S
        )
        assert status.code == 0, status
    for name in ("duemq", "duemq_migration.plugin"):
        sys.stdout.write(f"{import_module(name).__file__}\n")
    for name in OWN_PACKAGES:
        assert Path(import_module(name).__file__ or "").parent == Path(__file__).parent / name


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
