"""Sends of many calls in one turn: one append, a status for each, waits for the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.broker.broker import Broker
from duemq.net.http2.grpc_call import GrpcCall, GrpcLimits, GrpcMethod
from duemq.send.decoded_sends import DecodedSends, SendOutcome
from duemq.v5.batched_calls import CALLS_MAX
from duemq.v5.clients import V5Clients
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.send_turns import SendTurns
from duemq.v5.sends import SendCalls
from duemq_common.request import Request, Response
from message_store.replication.acknowledgement import Missing
from tests.duemq.v5.conftest import Run
from tests.support.free_ports import free_ports
from tests.support.running_broker import small
from tests.support.v5_client import V5Caller, message, sending, typed_topic, v5_caller

CALLS = CALLS_MAX + 50


async def codes(caller: V5Caller, *requests: api.SendMessageRequest) -> list[int]:
    """Make calls at the same time; return the status code of each."""
    responses = await asyncio.gather(*map(caller.call, requests))
    return [response.status.code for response in responses]


def test_calls_of_one_turn_are_appended_together(
    run: Run, broker: Broker, batch_sizes: list[int]
) -> None:
    async def main() -> list[Any]:
        async with v5_caller(broker.grpc_port) as caller:
            return await asyncio.gather(
                *(caller.call(sending(message("norm", b"%d" % n))) for n in range(CALLS))
            )

    responses = run(main())
    assert {response.status.code for response in responses} == {v2.OK}
    assert len({response.entries[0].offset for response in responses}) == CALLS
    assert sum(batch_sizes) == CALLS
    assert max(batch_sizes) <= CALLS_MAX
    assert len(batch_sizes) < CALLS / 2


def test_each_call_of_a_turn_has_its_own_status(run: Run, broker: Broker) -> None:
    requests = {
        "one": (sending(message("norm")), v2.OK),
        "no topic": (sending(message("absent")), v2.TOPIC_NOT_FOUND),
        "no body": (sending(message("norm", b"")), v2.MESSAGE_BODY_EMPTY),
        "none": (sending(), v2.MESSAGE_CORRUPTED),
        "several": (sending(message("norm"), message("norm")), v2.OK),
        "two topics": (sending(message("norm"), message("mixed")), v2.MESSAGE_CORRUPTED),
        "too late": (
            sending(message("delay", deliver_ms=4_000_000_000_000)),
            v2.ILLEGAL_DELIVERY_TIME,
        ),
        "last": (sending(message("norm")), v2.OK),
    }

    async def main() -> list[int]:
        async with v5_caller(broker.grpc_port) as caller:
            return await codes(caller, *(request for request, _ in requests.values()))

    assert dict(zip(requests, run(main()), strict=True)) == {
        name: code for name, (_, code) in requests.items()
    }


def test_a_status_waits_until_the_message_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(end_offset: int) -> Missing:
        return Missing.DISK

    async def main() -> tuple[list[int], list[int]]:
        port = str(free_ports(1)[0])
        keys = small(tmp_path, grpcServerPort=port, flushDiskType="SYNC_FLUSH")
        async with Broker(keys) as broker:
            await typed_topic(broker, "norm", "NORMAL")
            async with v5_caller(broker.grpc_port) as caller:
                requests = [sending(message("norm")) for _ in range(20)]
                confirmed = await codes(caller, *requests)
                monkeypatch.setattr(broker.store, "wait_confirmed", never)
                return confirmed, await codes(caller, *requests)

    confirmed, unconfirmed = asyncio.run(main())
    assert confirmed == [v2.OK] * 20
    assert unconfirmed == [v2.MASTER_PERSISTENCE_TIMEOUT] * 20


class Connection:
    """Connection of a call that records how the call is served."""

    address = ("10.0.0.7", 1)

    def __init__(self) -> None:
        self.served: list[GrpcCall] = []
        self.failed: list[BaseException] = []

    def schedule_output(self, call: GrpcCall) -> None: ...

    def count_bytes(self, more: int) -> None: ...

    def hold(self, call: GrpcCall, more: int) -> None: ...

    def start(self, call: GrpcCall, work: Any) -> None:
        work.close()
        self.served.append(call)

    def fail(self, call: GrpcCall, error: BaseException) -> None:
        self.failed.append(error)


class Sends:
    """Append path that has the same outcome for each request."""

    def __init__(self, outcome: SendOutcome) -> None:
        self.outcome, self.requests = outcome, list[Request]()

    def append(self, requests: Any) -> list[SendOutcome]:
        found = list(requests)
        self.requests += found
        return [self.outcome] * len(found)


def taken(outcome: SendOutcome, *, is_lost: bool = False) -> tuple[Connection, Sends, GrpcCall]:
    """Take one call, and end the turn."""

    async def handler(call: GrpcCall) -> None: ...

    async def main() -> tuple[Connection, Sends, GrpcCall]:
        connection, sends = Connection(), Sends(outcome)
        calls = SimpleNamespace(
            requests_of=lambda context, client, request: [Request(10, {})],
            send_response=lambda request, responses: api.SendMessageResponse(),
        )
        clients = SimpleNamespace(for_call=lambda context: None)
        turns = SendTurns(
            cast(SendCalls, calls), cast(DecodedSends, sends), cast(V5Clients, clients)
        )
        fields = {b"x-mq-client-id": b"c@1"}
        call = GrpcCall(connection, 1, GrpcMethod("SendMessage", handler, turns=turns), fields)
        data = sending(message("norm")).SerializeToString()
        call.feed(b"\0" + len(data).to_bytes(4, "big") + data, GrpcLimits())
        turns.take(call)
        if is_lost:
            call.cancel()
        await asyncio.sleep(0)
        return connection, sends, call

    return asyncio.run(main())


def test_a_send_that_must_wait_for_its_topic_is_left_to_the_handler() -> None:
    connection, _, call = taken(SendOutcome())
    assert connection.served == [call]
    assert call.received() is not None  # the handler reads it again
    assert not call.is_finished


def test_a_call_cancelled_before_the_end_of_the_turn_is_not_stored() -> None:
    _, sends, _ = taken(SendOutcome((Response(), None, False)), is_lost=True)
    assert sends.requests == []


def test_a_stored_send_is_answered_without_a_task() -> None:
    connection, sends, call = taken(SendOutcome((Response(), None, False)))
    assert len(sends.requests) == 1
    assert connection.served == []
    assert call.is_finished
