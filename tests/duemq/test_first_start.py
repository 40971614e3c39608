"""A broker delivers while the kernels of some requests are still compiled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from duemq.broker import assembly
from duemq.broker.broker import Broker
from duemq.cli.kernels import AFTERWARDS
from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request
from message_store.kernels.preparation import Preparation
from message_store.kernels.registry import KernelEntry
from tests.support.kernel_work.broker import SMALL, TOPIC, pull_request, send_request

TIMEOUT_S = 60.0


def test_delayed_messages_are_delivered_before_all_kernels_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        may_compile = asyncio.Event()

        async def compiled(kernels: Sequence[KernelEntry], niceness: int) -> None:
            await may_compile.wait()

        properties = SMALL | {"storePathRootDir": str(tmp_path)}
        kernels = Preparation(AFTERWARDS, compiled)
        async with (
            asyncio.timeout(TIMEOUT_S),
            Broker(properties, kernels=kernels) as broker,
            RemotingClient(broker.address) as client,
        ):
            for delay in ({}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1"}):
                send = send_request(RequestCode.SEND_MESSAGE_V2, delay)
                assert (await client.call(send, timeout_s=TIMEOUT_S)).code == 0
            offset = 0
            while offset < 3:
                response = await client.call(pull_request(offset), timeout_s=TIMEOUT_S)
                offset = int((response.fields or {}).get("nextBeginOffset", offset))
            fields = {"topic": TOPIC, "queueId": "0", "timestamp": "0"}
            search = Request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
            monkeypatch.setattr(assembly, "COMPILATION_S_MAX", 0.0)
            refused = await client.call(search, timeout_s=TIMEOUT_S)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert refused.remark == assembly.COMPILING
            monkeypatch.setattr(assembly, "COMPILATION_S_MAX", TIMEOUT_S)
            held = asyncio.create_task(client.call(search, timeout_s=TIMEOUT_S))
            assert await end_of_queue(client) == 3
            assert not held.done()
            may_compile.set()
            assert (await held).code == 0
            send = send_request(RequestCode.SEND_MESSAGE_V2, {})
            assert (await client.call(send, timeout_s=TIMEOUT_S)).code == 0
            assert await end_of_queue(client) == 4

    asyncio.run(check())


async def end_of_queue(client: RemotingClient) -> int:
    """Return the number of messages in the topic."""
    request = Request(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
    return int((await client.call(request, timeout_s=TIMEOUT_S)).fields["offset"])
