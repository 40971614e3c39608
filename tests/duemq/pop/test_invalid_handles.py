"""Acknowledgements and pops with invalid handles, batches and offsets are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq_common.clock import FakeClock
from tests.support.pop_client import PopClient, Popped, advance, send
from tests.support.running_broker import BrokerClient

RETRY = "%RETRY%g_T"


def batch_of(messages: list[Popped]) -> bytes:
    start, pop_ms, invisible_ms, revive, *_ = messages[0].handle.split(" ")
    bits = sum(1 << message.offset - int(start) for message in messages)
    entry = {
        "c": "g",
        "t": "T",
        "r": "0",
        "so": int(start),
        "q": 0,
        "rq": int(revive),
        "pt": int(pop_ms),
        "it": int(invisible_ms),
        "b": base64.b64encode(bits.to_bytes(8, "little")).decode(),
    }
    return json.dumps({"brokerName": "test", "acks": [entry]}).encode()


def test_a_batch_acknowledges_the_messages_whose_bits_are_set(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", b"b", b"c")
        found = await client.pop(invisibleTime=10_000)
        assert (await remote.call(200_151, {}, batch_of(found[::2]))).code == 0
        assert (await remote.call(200_151, {}, batch_of(found[::2]))).code == 0
        await advance(broker, clock, 10_100)
        assert [message.body for message in await client.pop()] == [b"b"]

    run_rig(scene)


def test_a_batch_of_absent_messages_stores_no_record(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        (message,) = await client.pop(invisibleTime=10_000)
        absent = replace(message, offset=message.offset + 5)
        before = broker.store.max_offset
        assert (await remote.call(200_151, {}, batch_of([absent]))).code == 0
        assert broker.store.max_offset == before

    run_rig(scene)


BATCHES = {
    "none": (b"{}", 208),
    "no json": (b"{", 29),
    "no list": (b'{"acks":7}', 29),
    "no objects": (b'{"acks":[7]}', 29),
    "no names": (b'{"acks":[{"c":"g"}]}', 29),
    "too many": (json.dumps({"acks": [{}] * 1_025}).encode(), 29),
}


@pytest.mark.parametrize(("body", "code"), BATCHES.values(), ids=BATCHES)
def test_malformed_batches_change_nothing(
    run_rig: Callable[..., Any], body: bytes, code: int
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        before = broker.store.max_offset
        assert (await remote.call(200_151, {}, body)).code == code
        assert broker.store.max_offset == before

    run_rig(scene)


@pytest.mark.parametrize(
    ("names", "code"),
    [({"t": "absent"}, 17), ({"t": "SCHEDULE_TOPIC_XXXX"}, 16), ({"q": 99}, 13)],
)
def test_a_batch_with_a_queue_that_does_not_exist_changes_nothing(
    run_rig: Callable[..., Any], names: dict[str, object], code: int
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        batch = json.loads(batch_of(await client.pop(invisibleTime=10_000)))
        batch["acks"] += [batch["acks"][0] | names]
        before = broker.store.max_offset
        assert (await remote.call(200_151, {}, json.dumps(batch).encode())).code == code
        assert broker.store.max_offset == before

    run_rig(scene)


HANDLES = {
    "empty": "",
    "words": "a b c d e f g h",
    "short": "0 1 60000",
    "huge": "9" * 2_000,
    "negative": "0 -1 60000 0 0 test 0 0",
    "revive queue": "0 1700000000000 60000 8 0 test 0 0",
    "another broker": "0 1700000000000 60000 0 0 other 0 0",
    "far away": f"0 1700000000000 {10**17} 0 0 test 0 0",
}


@pytest.mark.sampled
@pytest.mark.parametrize("handle", HANDLES.values(), ids=HANDLES)
def test_a_forged_handle_is_refused_and_no_record_is_stored(
    run_rig: Callable[..., Any], handle: str
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        (message,) = await client.pop(invisibleTime=10_000)
        before = broker.store.max_offset
        assert (await client.ack(message, extraInfo=handle)).code == 29
        assert (await client.change(message, 5_000, extraInfo=handle)).code == 29
        assert broker.store.max_offset == before
        await advance(broker, clock, 10_100)
        assert [again.body for again in await client.pop()] == [b"a"]

    run_rig(scene)


CHANGED = {
    "another group": {"consumerGroup": "other"},
    "another time": {"extraInfo": "0 1700000000001 10000 0 0 test 0 0"},
    "another start": {"extraInfo": "7 1700000000000 10000 0 0 test 0 0"},
}


@pytest.mark.parametrize("changes", CHANGED.values(), ids=CHANGED)
def test_a_handle_of_another_pop_acknowledges_no_message(
    run_rig: Callable[..., Any], changes: dict[str, str]
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        (message,) = await client.pop(invisibleTime=10_000)
        assert (await client.ack(message, **changes)).code == 0
        await advance(broker, clock, 10_100)
        assert [again.body for again in await client.pop()] == [b"a"]

    run_rig(scene)


OUTSIDE = {
    "queue": ({"queueId": 9}, 13),
    "offset": ({"offset": 7}, 208),
    "topic": ({"topic": "None"}, 17),
    "internal topic": ({"topic": "rmq_sys_REVIVE_LOG_DefaultCluster"}, 16),
}


@pytest.mark.parametrize(("changes", "code"), OUTSIDE.values(), ids=OUTSIDE)
def test_an_acknowledgement_of_an_absent_message_is_refused(
    run_rig: Callable[..., Any], changes: dict[str, int | str], code: int
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        (message,) = await client.pop(invisibleTime=10_000)
        before = broker.store.max_offset
        assert (await client.ack(message, **changes)).code == code
        assert (await client.change(message, 5_000, **changes)).code == code
        assert broker.store.max_offset == before

    run_rig(scene)


REFUSED = {
    "a year": ({"invisibleTime": 365 * 86_400_000}, 29),
    "a long": ({"invisibleTime": 2**63 - 1}, 29),
    "negative": ({"invisibleTime": -1}, 29),
    "too many": ({"maxMsgNums": 33}, 29),
    "none": ({"maxMsgNums": 0}, 29),
    "queue": ({"queueId": 7}, 29),
    "late": ({"bornTime": 1}, 210),
    "filter": ({"expType": "TAG", "exp": "||"}, 23),
}


@pytest.mark.parametrize(("changes", "code"), REFUSED.values(), ids=REFUSED)
def test_a_refused_pop_does_not_advance_the_offset(
    run_rig: Callable[..., Any], changes: dict[str, int | str], code: int
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        assert (await client.call(**changes)).code == code
        assert [message.body for message in await client.pop()] == [b"a"]

    run_rig(scene)
