"""Pulls, pops and notifications on hold: permissions are checked again before the response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from tests.support.running_broker import BrokerClient, connected, running, small
from tests.support.wait_until import until

SLOTS = 64  # more than the queues of the broker
Change = Callable[[BrokerClient], Awaitable[Response]]


async def lose_read_permission(remote: BrokerClient) -> Response:
    fields = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    return await remote.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def disable_group(remote: BrokerClient) -> Response:
    body = b'{"groupName":"g","consumeEnable":false}'
    return await remote.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


async def lose_broker_permission(remote: BrokerClient) -> Response:
    return await remote.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=2\n")


def pop(code: int) -> tuple[int, dict[str, Any]]:
    return code, {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "maxMsgNums": 8,
        "invisibleTime": 60_000,
        "pollTime": 30_000,
        "bornTime": 0,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
        "order": "false",
    }


def pull(code: int) -> tuple[int, dict[str, Any]]:
    return code, {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 1,
        "maxMsgNums": 32,
        "sysFlag": 6,
        "commitOffset": 0,
        "suspendTimeoutMillis": 30_000,
        "subscription": "*",
        "subVersion": 0,
    }


@pytest.mark.finding("3D10")
@pytest.mark.parametrize(
    ("code", "fields"),
    [
        pull(RequestCode.PULL_MESSAGE),
        pull(RequestCode.LITE_PULL_MESSAGE),
        pop(RequestCode.POP_MESSAGE),
        pop(RequestCode.NOTIFICATION),
    ],
)
@pytest.mark.parametrize("change", [lose_read_permission, disable_group, lose_broker_permission])
def test_a_request_on_hold_gets_no_message_without_the_permission(
    tmp_path: Path, code: int, fields: dict[str, Any], change: Change
) -> None:
    async def hold(broker: Broker, remote: BrokerClient) -> Response:
        if "pollTime" in fields:  # pop the first message, so that the next request is held
            first = await remote.call(*pop(RequestCode.POP_MESSAGE))
            assert first.code == 0, first
        held = asyncio.create_task(remote.call(code, fields))
        polls = broker.parts.long_polls
        await asyncio.to_thread(until, lambda: len(polls) == 1, seconds=60, what="a long poll")
        async with connected(broker.address) as other:
            changed = await change(other)
            assert changed.code == 0, changed
            if change is lose_broker_permission:
                for slot in range(SLOTS):
                    polls.resume_slot(slot)
            else:
                assert (await other.send("T", b"secret")).code == 0
            return await held

    async def main() -> Response:
        async with running(small(tmp_path)) as (broker, remote):
            assert (await remote.send("T", b"first")).code == 0
            return await hold(broker, remote)

    response = asyncio.run(main())
    assert response.code == ResponseCode.NO_PERMISSION, response
    assert not response.body
