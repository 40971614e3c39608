"""Room for later copies: a message of the maximum size passes through every copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.later_copies import (
    HALF_BYTES_MAX,
    LATER_COPY_BYTES,
    SENT_BYTES_MAX,
    SENT_RETRY_BYTES_MAX,
    entry_bytes,
    fault_of,
    handle_bytes_max,
)
from duemq.broker.broker import Broker
from duemq.pop.names import ORDER_QUEUE
from duemq.pop.receipts import Receipt
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.properties import PROPERTIES_BYTES_MAX, encode_properties
from message_store.log.record import Record
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import BrokerClient, running, small

TOPIC, GROUP = "T" * 127, "g" * 120  # %RETRY%GROUP_TOPIC has at most 255 bytes
Scene = Callable[[Broker, FakeClock, BrokerClient], Any]


def run(root: Path, scene: Scene) -> None:
    async def main() -> None:
        clock = FakeClock()
        keys = {"mappedFileSizeCommitLog": "1048576", "transactionTimeOut": "1000"}
        async with running(small(root, **keys), clock=clock) as (broker, remote):
            await scene(broker, clock, remote)
            assert broker.store.queue_bounds(QUARANTINE_TOPIC, 0) == (0, 0)

    asyncio.run(main())


def records(broker: Broker, topic: str) -> list[Record]:
    units = broker.store.units(topic, 0, 0, 100)
    return [broker.store.read_record(at) for at in units["phys_offset"].tolist()]


async def sizes(remote: BrokerClient, broker: Broker) -> int:
    """Return the bytes of the properties that the broker adds to a message."""
    assert (await remote.send("probe", b"m", UNIQ_KEY="u", a="x")).code == 0
    given = len(encode_properties({"UNIQ_KEY": "u", "a": "x"}))
    return len(records(broker, "probe")[0].property_text) - given


def full(size: int, added: int, **properties: str) -> dict[str, str]:
    """Return properties that have `size` bytes when the broker has added its own."""
    known = {"UNIQ_KEY": "u"} | properties
    return known | {"a": "x" * (size - added - len(encode_properties(known)) - entry_bytes("a", 0))}


@pytest.mark.finding("3D1")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("over", "code"), [(0, 0), (1, 13)])
def test_a_send_without_room_is_refused(
    tmp_path: Path, compiled: bool, over: int, code: int
) -> None:
    more = {} if compiled else {"INNER_BASE": "1"}  # such messages are decoded in Python

    async def scene(broker: Broker, clock: FakeClock, remote: BrokerClient) -> None:
        added = await sizes(remote, broker)
        await remote.send("T", b"first")
        properties = full(SENT_BYTES_MAX + over, added, **more)
        response = await remote.send("T", b"m", **properties)
        assert response.code == code, response.remark
        if code:
            limit = f"{SENT_BYTES_MAX}: {PROPERTIES_BYTES_MAX} less {LATER_COPY_BYTES}"
            assert limit in (response.remark or "")

    run(tmp_path, scene)


@pytest.mark.sampled
@pytest.mark.finding("3D1")
@pytest.mark.parametrize("kind", ["plain", "level", "timer"])
def test_the_largest_message_passes_through_all_copies(tmp_path: Path, kind: str) -> None:
    async def scene(broker: Broker, clock: FakeClock, remote: BrokerClient) -> None:
        await broker.parts.topics.ensure(TOPIC, queues=1)
        added = await sizes(remote, broker)
        due = {"level": {"DELAY": "1"}, "timer": {"TIMER_DELAY_MS": "3000"}}.get(kind, {})
        properties = full(SENT_BYTES_MAX, added, **due)
        response = await remote.send(TOPIC, b"m", **properties)
        assert response.code == 0, response.remark
        await advance(broker, clock, 5_000)
        client = PopClient(remote, clock, GROUP)
        for _ in range(3):
            [message] = await client.pop(TOPIC, invisibleTime=5_000)
            assert message.record.properties["a"] == properties["a"]
            await advance(broker, clock, 6_000)
        [message] = await client.pop(TOPIC)
        source = records(broker, f"%RETRY%{GROUP}_{TOPIC}")[-1]
        back = {"group": GROUP, "offset": source.phys_offset, "delayLevel": 1}
        response = await remote.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert response.code == 0, response.remark
        await advance(broker, clock, 2_000)
        [retry] = records(broker, f"%RETRY%{GROUP}")
        assert retry.properties["a"] == properties["a"]

    run(tmp_path, scene)


@pytest.mark.finding("3D3")
@pytest.mark.parametrize(("over", "code"), [(0, 0), (1, 13)])
def test_the_largest_half_message_is_checked_back_and_committed(
    tmp_path: Path, over: int, code: int
) -> None:
    async def scene(broker: Broker, clock: FakeClock, remote: BrokerClient) -> None:
        await broker.parts.topics.ensure(TOPIC, queues=1)
        added = await sizes(remote, broker)
        added += entry_bytes("__transactionId__", 1) + entry_bytes("REAL_QID", 1)
        added += entry_bytes("REAL_TOPIC", len(TOPIC))
        due = {"TRAN_MSG": "true", "PGROUP": "p", "TIMER_DELAY_MS": "3000"}
        properties = full(HALF_BYTES_MAX + over, added, **due)
        response = await remote.send(TOPIC, b"m", **properties)
        assert response.code == code, response.remark
        if code:
            return
        assert broker.parts.transactions is not None
        for _ in range(3):
            clock.advance(10_000)
            await broker.parts.transactions.check()
        half = records(broker, "RMQ_SYS_TRANS_HALF_TOPIC")[-1]
        assert half.properties["TRANSACTION_CHECK_TIMES"] == "3"
        end = {
            "producerGroup": "p",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.phys_offset,
            "commitOrRollback": 8,
            "msgId": "u",
        }
        assert (await remote.call(RequestCode.END_TRANSACTION, end)).code == 0
        await advance(broker, clock, 5_000)
        client = PopClient(remote, clock, GROUP)
        for _ in range(2):
            [message] = await client.pop(TOPIC, invisibleTime=5_000)
            assert message.record.properties["a"] == properties["a"]
            await advance(broker, clock, 6_000)

    run(tmp_path, scene)


def test_a_retry_sent_by_a_client_may_be_larger() -> None:
    assert fault_of(SENT_RETRY_BYTES_MAX, SENT_RETRY_BYTES_MAX) == ""
    assert SENT_BYTES_MAX < SENT_RETRY_BYTES_MAX < PROPERTIES_BYTES_MAX


def test_the_maximum_of_a_receipt_handle_is_that_of_its_longest_values() -> None:
    offset, time_ms, queue_id, broker_name = (1 << 63) - 1, 10**13 - 1, 10**9 - 1, "b" * 127
    longest = Receipt(offset, time_ms, time_ms, ORDER_QUEUE, "1", broker_name, queue_id)
    assert handle_bytes_max(len(broker_name)) == len(longest.text(offset))
