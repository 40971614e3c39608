"""Thousands of held pulls: no task for each, nothing left of an ended one, order, cancellation."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher, LaterResponse
from duemq.net.limits import RemotingLimits
from duemq.net.memory import FLOOR_BYTES
from duemq.net.meters import RpcMeter
from duemq.pull.long_polls import RESUMED_PER_TURN
from duemq_common.request import Request, Response
from tests.duemq.net.test_connection import MemoryTransport
from tests.duemq.pull.test_pull import SUBSCRIPTION, SUSPEND, Rig
from tests.support.fakes import fake_topic, put, settle

TRACKED_MAX = 2  # objects of a held pull that the collector visits: the sets of its queue
PULLS = 500


class Served:
    """Pull processor with the pulls of one connection."""

    def __init__(self, **limits: Any) -> None:
        self.rig = Rig(topic=fake_topic("T", 1_000, 1_000))
        self.meter = RpcMeter(self.rig.clock)
        dispatcher = Dispatcher(self.rig.processor.handlers(), meter=self.meter)
        self.transport = MemoryTransport()
        self.connection = Connection(dispatcher, limits=RemotingLimits(**limits))
        self.connection.connection_made(self.transport)

    def pull(self, queue_id: int, opaque: int) -> None:
        flags = SUBSCRIPTION | SUSPEND
        request = self.rig.request(queueId=queue_id, sysFlag=flags)
        self.connection.dispatch(
            Request(11, request.fields, opaque=opaque, peer=self.connection), 0
        )

    def references(self) -> tuple[int, int]:
        """Return the numbers of references to the connection and to the processor."""
        return sys.getrefcount(self.connection), sys.getrefcount(self.rig.processor)

    def responses(self) -> list[codec.ReceivedResponse]:
        received, pos = [], 0
        view = memoryview(bytes(self.transport.written))
        while (frame := codec.next_frame(view, pos, len(view))) is not None:
            command = codec.decode_frame(view, frame)
            assert isinstance(command, codec.ReceivedResponse)
            received.append(command)
            pos = frame.end
        return received


def test_a_held_pull_is_no_task_and_hardly_an_object_of_the_collector(
    run: Callable[..., Any],
) -> None:
    async def scene() -> None:
        served = Served()
        served.pull(0, 0)
        gc.collect()  # may begin tasks that close what earlier tests of other libraries left
        tasks = asyncio.all_tasks()
        before = len(gc.get_objects())
        for queue_id in range(1, PULLS + 1):
            served.pull(queue_id, queue_id)
        gc.collect()
        assert len(served.rig.long_polls) == PULLS + 1
        assert asyncio.all_tasks() == tasks
        more = len(gc.get_objects()) - before
        assert more <= TRACKED_MAX * PULLS + PULLS // 2

    run(scene())


@pytest.mark.parametrize("end", ["message", "deadline", "loss"])
def test_nothing_is_left_of_an_ended_pull(run: Callable[..., Any], end: str) -> None:
    async def scene() -> None:
        served = Served()
        served.pull(0, 0)
        rig = served.rig
        put(rig.store, "T", b"x")
        await settle()
        before = served.references()
        for round_number in range(3):
            for queue_id in range(1, 50):
                served.pull(queue_id, queue_id)
            held = served.references()
            assert min(held) > max(before) or round_number
            if end == "message":
                for queue_id in range(1, 50):
                    put(rig.store, "T", b"x", queue_id=queue_id)
            elif end == "deadline":
                rig.clock.advance(60_000)
                rig.long_polls.expire(rig.clock.steady_ms())
            elif round_number == 2:
                served.connection.connection_lost(None)
            else:
                await served.connection.finish(0.0)
            await settle(20)
        connection, processor = served.references()
        assert processor == before[1]
        assert connection <= before[0]
        assert served.connection.requests_in_flight == len(rig.long_polls) == 0

    run(scene())


def test_pulls_are_resumed_in_order_some_in_each_turn_of_the_loop(
    run: Callable[..., Any],
) -> None:
    async def scene() -> None:
        served = Served()
        count = 2 * RESUMED_PER_TURN + 5
        for opaque in range(count):
            served.pull(opaque, opaque)
        for queue_id in range(count):
            put(served.rig.store, "T", b"x", queue_id=queue_id)
        seen = []
        while len(served.responses()) < count:
            before = len(served.responses())
            await asyncio.sleep(0)
            seen.append(len(served.responses()) - before)
        assert max(seen) <= RESUMED_PER_TURN
        assert [each.opaque for each in served.responses()] == [*range(count)]
        assert all(each.response.code == 0 for each in served.responses())
        assert served.meter.in_flight()["pull"] == 0

    run(scene())


def test_each_message_is_in_one_response(run: Callable[..., Any]) -> None:
    """A second message before the pull is resumed is in the same response."""

    async def scene() -> None:
        served = Served()
        served.pull(0, 1)
        put(served.rig.store, "T", b"first")
        put(served.rig.store, "T", b"second")
        await settle()
        [only] = served.responses()
        body = only.response.body
        assert isinstance(body, bytes)
        assert body.count(b"first") == body.count(b"second") == 1
        assert (only.response.fields or {})["nextBeginOffset"] == "2"

    run(scene())


def test_a_failing_pull_does_not_stop_the_others(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        served = Served()
        units = served.rig.store.units

        def fails(topic: str, queue_id: int, offset: int, count: int) -> Any:
            if queue_id == 1:
                raise OSError("the disk")
            return units(topic, queue_id, offset, count)

        for queue_id in range(3):
            served.pull(queue_id, queue_id)
        monkeypatch.setattr(served.rig.store, "units", fails)
        for queue_id in range(3):
            put(served.rig.store, "T", b"x", queue_id=queue_id)
        await settle()
        answers = {each.opaque: each.response for each in served.responses()}
        assert [answers[number].code for number in range(3)] == [0, 1, 0]
        assert "the disk" in (answers[1].remark or "")

    run(scene())


def test_a_held_pull_counts_as_a_request_in_flight(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        served = Served(requests_in_flight_max=2)
        for opaque in range(3):
            served.pull(opaque, opaque)
        [refused] = served.responses()
        assert (refused.opaque, refused.response.code) == (2, 2)
        assert served.connection.requests_in_flight == 2

    run(scene())


def test_the_end_of_a_connection_waits_for_responses_then_cancels(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        served = Served()
        served.pull(0, 0)
        served.pull(1, 1)
        ending = asyncio.create_task(served.connection.finish(30.0))
        await settle()
        put(served.rig.store, "T", b"x")
        await settle()
        assert not ending.done()
        served.rig.long_polls.stop()
        await settle()
        assert ending.done()
        assert [each.opaque for each in served.responses()] == [0, 1]
        assert served.connection.requests_in_flight == 0

    run(scene())


@pytest.mark.parametrize(("size", "writes"), [(1, 1), (FLOOR_BYTES // 4, 2), (2 * FLOOR_BYTES, 8)])
def test_responses_of_one_turn_are_written_together_up_to_a_size(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, size: int, writes: int
) -> None:
    """A member of a group has a long poll for each of its queues; each write is a system call."""

    async def scene() -> None:
        served, calls = Served(), list[int]()
        write = served.transport.writelines

        def counted(parts: Any) -> None:
            parts = list(parts)
            calls.append(len(parts))
            write(parts)

        monkeypatch.setattr(served.transport, "writelines", counted)
        for queue_id in range(8):
            served.pull(queue_id, queue_id)
        for queue_id in range(8):
            put(served.rig.store, "T", bytes(size), queue_id=queue_id)
        await asyncio.sleep(0)
        assert served.connection.unsent_bytes < FLOOR_BYTES + size + 1_000
        await settle()
        assert [each.opaque for each in served.responses()] == [*range(8)]
        assert len(calls) == writes
        assert served.connection.unsent_bytes == 0

    run(scene())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_responses_before_a_close_are_written_and_none_after_an_abort(
    run: Callable[..., Any], end: str
) -> None:
    async def scene() -> None:
        served = Served()
        served.pull(0, 0)
        put(served.rig.store, "T", b"x")
        await asyncio.sleep(0)
        assert served.connection.unsent_bytes > 0
        getattr(served.connection, end)()
        await settle()
        assert len(served.responses()) == (end == "close")

    run(scene())


def test_a_cancelled_wait_for_a_response_cancels_the_request(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig = Rig()
        pull = asyncio.create_task(rig.pull(sysFlag=SUBSCRIPTION | SUSPEND))
        await settle()
        assert len(rig.long_polls) == 1
        pull.cancel()
        await settle()
        assert len(rig.long_polls) == 0

    run(scene())


def test_a_later_response_is_sent_once(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        later = LaterResponse(request=Request(11, {}))
        task = asyncio.create_task(_await(later))
        await settle()
        later.finish(Response(7))
        later.finish(Response(8))
        later.cancel()
        assert (await task) == Response(7)

    run(scene())


async def _await(later: LaterResponse) -> Response | None:
    return await later
