"""Load: pull rate of one consumer with an SQL92 filter."""

from __future__ import annotations

import asyncio
from time import perf_counter

from benchmarks.bench import Bench, Load, Metric
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq.send.layout import SEND_LETTERS
from duemq_common.request import Request, Response
from message_store.log.layout import BATCH_ENTRY_HEAD
from message_store.log.properties import encode_properties

MESSAGES = 1_000_000
SHARES = 100  # the filter matches 1 of SHARES messages
IN_FLIGHT = 8
CALL_S = 60.0
BODY = b"x" * 100
FILTER = "share = 7 AND region IN ('eu', 'us')"


def sql_filter(bench: Bench) -> list[Metric]:
    """Fill a queue, then pull the whole queue with a filter, sequentially."""
    batches = bench.count(MESSAGES) // SHARES
    address = f"127.0.0.1:{bench.server.broker_port}"
    return asyncio.run(_measure(address, bench.topic(), batches))


async def _measure(address: str, topic: str, batches: int) -> list[Metric]:
    async with RemotingClient(address) as client:
        await _fill(client, topic, batches)
        await _pull_all(client, topic, batches * SHARES)  # warm up caches and compiled code
        begin = perf_counter()
        matches, pulls = await _pull_all(client, topic, batches * SHARES)
        seconds = perf_counter() - begin
    assert matches == batches, f"{matches} messages passed the filter, not {batches}"
    speed = batches * SHARES / seconds
    return [
        Metric(name="filtered", value=speed, unit="msg/s", better="more"),
        Metric(name="pulls", value=pulls, unit="", better="less"),
    ]


async def _fill(client: RemotingClient, topic: str, batches: int) -> None:
    values = ("g", topic, "TBW102", "4", "0", "0", "0", "0", "", "0", "false", "0", "true")
    fields = dict(zip(SEND_LETTERS, values, strict=False))
    body = b"".join(map(_entry, range(SHARES)))

    async def send(count: int) -> None:
        for _ in range(count):
            request = Request(RequestCode.SEND_BATCH_MESSAGE, dict(fields), body, version=479)
            response = await client.call(request, timeout_s=CALL_S)
            assert response.code == 0, response.remark

    async with asyncio.TaskGroup() as tasks:
        for number in range(IN_FLIGHT):
            tasks.create_task(send(batches // IN_FLIGHT + (number < batches % IN_FLIGHT)))


def _entry(share: int) -> bytes:
    """Encode one message of a batch."""
    pairs = {
        "UNIQ_KEY": f"7F00000100002A139A55{share:012X}",
        "WAIT": "true",
        "share": str(share),
        "region": "eu",
        "name": "customer-1234567",
    }
    properties = encode_properties(pairs)
    size = BATCH_ENTRY_HEAD.size + len(BODY) + 2 + len(properties)
    tail = BODY + len(properties).to_bytes(2, "big") + properties
    return BATCH_ENTRY_HEAD.pack(size, 0, 0, 0, len(BODY)) + tail


async def _pull_all(client: RemotingClient, topic: str, end: int) -> tuple[int, int]:
    """Return the number of matching messages and the number of pulls."""
    offset = matches = pulls = 0
    while offset < end:
        response = await client.call(_pull(topic, offset), timeout_s=CALL_S)
        assert response.code in (0, 20), response.remark
        offset = int((response.fields or {})["nextBeginOffset"])
        matches += _count(response)
        pulls += 1
    return matches, pulls


def _pull(topic: str, offset: int) -> Request:
    fields = {
        "consumerGroup": "bench-filter",
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": FILTER,
        "expressionType": "SQL92",
        "subVersion": "1",
    }
    return Request(RequestCode.PULL_MESSAGE, fields, version=479)


def _count(response: Response) -> int:
    """Return the number of records in the body of a response."""
    position = count = 0
    while position < len(response.body):
        position += int.from_bytes(response.body[position : position + 4], "big")
        count += 1
    return count


LOADS = [
    Load(
        name="sql-filter",
        what="one queue of 1 M messages pulled with an SQL92 filter that 1 % pass",
        run=sql_filter,
        keys={"enablePropertyFilter": "true"},
    )
]
