"""Acknowledgements of many calls in one turn: one append, a status for each entry."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.pop.revive_log import ReviveLog
from duemq.v5.protocol import definition as v2
from duemq_common.codes import RequestCode
from duemq_common.errors import RequestError
from tests.duemq.v5.conftest import Run
from tests.support.free_ports import free_ports
from tests.support.running_broker import small
from tests.support.v5_client import V5Caller, message, sending, typed_topic, v5_caller

COUNT = 20


async def handles_of(caller: V5Caller, topic: str, group: str) -> list[str]:
    """Send messages, and return the handles with which they are received."""
    await caller.receive(topic, group, invisible_s=600, poll_ms=100)  # those of other tests
    return await handles_in_new_topic(caller, topic, group)


async def handles_in_new_topic(caller: V5Caller, topic: str, group: str) -> list[str]:
    """Return the handles of messages in a topic that has no others."""
    await caller.call(sending(*(message(topic, b"%d" % n) for n in range(COUNT))))
    _, found = await caller.receive(topic, group)
    return [each.system_properties.receipt_handle for each in found]


async def acknowledged(caller: V5Caller, topic: str, group: str, handles: list[str]) -> list[int]:
    """Acknowledge each message by its own call, at the same time; return the codes."""
    found = await asyncio.gather(*(caller.ack(topic, group, each) for each in handles))
    return [code for codes in found for code in codes]


@pytest.mark.usefixtures("short_polls")
def test_calls_of_one_turn_are_one_record_per_checkpoint(
    run: Run, broker: Broker, batch_sizes: list[int]
) -> None:
    async def main() -> tuple[list[int], list[int]]:
        async with v5_caller(broker.grpc_port) as caller:
            handles = await handles_of(caller, "norm", "g-turns")
            batch_sizes.clear()
            expired = " ".join(["0", "1", *handles[0].split(" ")[2:]])
            wrong = await caller.ack("norm", "g-turns", expired, "x")
            return wrong, await acknowledged(caller, "norm", "g-turns", [*handles, "y"])

    wrong, codes = run(main())
    assert wrong == [v2.INVALID_RECEIPT_HANDLE, v2.INTERNAL_SERVER_ERROR]
    assert codes == [v2.OK] * COUNT + [v2.INTERNAL_SERVER_ERROR]
    assert 0 < len(batch_sizes) < COUNT / 2


def test_acknowledgements_are_measured(run: Run, broker: Broker) -> None:
    def measured() -> int:
        found = broker.parts.rpc.ms
        return sum(
            int(buckets[-1][1])
            for labels, buckets, _ in found
            if labels[0] == RequestCode.ACK_MESSAGE
        )

    async def main() -> tuple[int, int]:
        async with v5_caller(broker.grpc_port) as caller:
            handles = await handles_of(caller, "norm", "g-measured")
            before = measured()
            await acknowledged(caller, "norm", "g-measured", handles)
            return before, measured()

    before, after = run(main())
    assert after - before == COUNT


def test_each_entry_of_a_refused_append_has_its_status(
    run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: ReviveLog, *args: Any, **options: Any) -> dict[int, RequestError]:
        raise RequestError(1, "the disk is full")

    async def main() -> tuple[list[int], list[int]]:
        async with v5_caller(broker.grpc_port) as caller:
            handles = await handles_of(caller, "norm", "g-refused")
            with monkeypatch.context() as patch:
                patch.setattr(ReviveLog, "put_each", refused)
                failed = await acknowledged(caller, "norm", "g-refused", handles)
            return failed, await acknowledged(caller, "norm", "g-refused", handles)

    failed, repeated = run(main())
    assert failed == [v2.INTERNAL_SERVER_ERROR] * COUNT
    assert repeated == [v2.OK] * COUNT


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_status_waits_until_the_record_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confirmed: bool
) -> None:
    async def never(self: ReviveLog, what: str) -> None:
        raise RequestError(10, f"{what}, but it is not on the disk")

    async def main() -> list[int]:
        port = str(free_ports(1)[0])
        keys = small(tmp_path, grpcServerPort=port, flushDiskType="SYNC_FLUSH")
        async with Broker(keys) as broker:
            await typed_topic(broker, "norm", "NORMAL")
            async with v5_caller(broker.grpc_port) as caller:
                handles = await handles_in_new_topic(caller, "norm", "g")
                if not confirmed:
                    monkeypatch.setattr(ReviveLog, "confirm", never)
                return await acknowledged(caller, "norm", "g", handles)

    found = asyncio.run(main())
    assert found == [v2.OK if confirmed else v2.MASTER_PERSISTENCE_TIMEOUT] * COUNT
