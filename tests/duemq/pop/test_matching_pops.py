"""Pops that match the former one of their connection are read without decoding, and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duemq.net import codec
from duemq.net.memory import ReceiveBuffer
from duemq_common.codes import RequestCode
from tests.duemq.pop.test_pop_turns import Gate, Written, send_numbers
from tests.support.pop_client import popped
from tests.support.pop_frames import PopRig, ack_request, codes, responses, turn, write


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param("topic", 17, id="topic"),
        pytest.param("late", 210, id="late"),
        pytest.param("nothing", 210, id="no messages"),
    ],
)
def test_a_matching_pop_is_checked_like_the_first(
    rig: Callable[..., Any], change: str, code: int
) -> None:
    async def scene(rig: PopRig) -> None:
        await send_numbers(rig, 2)
        peer = await rig.peer()
        for opaque in (1, 2):
            write(peer, [rig.pop_request(opaque, maxMsgNums=1)])
            assert (await responses(peer, 1))[opaque].code == 0
        pop = rig.pop_request(3, maxMsgNums=1)
        if change == "topic":
            fields = {"topic": "T"}
            assert (await rig.remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, fields)).code == 0
        elif change == "late":
            pop.fields["bornTime"] = str(rig.clock.now_ms() - 60_000)
        write(peer, [pop])
        response = (await responses(peer, 1))[3]
        assert response.code == code
        assert ("after it was sent" in response.remark) == (change == "late")

    rig(scene)


@pytest.mark.parametrize("queue", [0, 3])
def test_matching_pops_can_name_one_queue(rig: Callable[..., Any], queue: int) -> None:
    async def scene(rig: PopRig) -> None:
        await send_numbers(rig, 40)
        peer = await rig.peer()
        for opaque in range(8):
            of = (queue + opaque) % 4
            write(peer, [rig.pop_request(opaque, maxMsgNums=2, queueId=of)])
            messages = popped((await responses(peer, 1))[opaque], "T")
            assert [message.queue_id for message in messages] == [of, of]
        refused = await codes(peer, [rig.pop_request(9, maxMsgNums=2, queueId=4)])
        assert refused == {9: 29}

    rig(scene)


class Received(Written):
    """Connection with bytes that its turn has not read yet."""

    def __init__(self) -> None:
        super().__init__()
        self.received = ReceiveBuffer()

    def receive(self, data: bytes) -> None:
        self.received.writable()[: len(data)] = data
        self.received.received(len(data))

    def on_close(self, callback: object) -> None: ...


@pytest.mark.parametrize("kind", ["acknowledgement", "pop"])
def test_matching_frames_are_not_read_beyond_the_bound(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("duemq.pop.pop_turns.UNCONFIRMED_MAX", 0)

    async def scene(rig: PopRig) -> None:
        await send_numbers(rig, 4)
        if kind == "pop":
            requests = [rig.pop_request(number, maxMsgNums=1) for number in range(2)]
        else:
            messages = await rig.pop_all(4)
            requests = [ack_request(message, number) for number, message in enumerate(messages[:2])]
        first, second = map(codec.encode_request, requests)
        parts, gate, connection = rig.broker.parts, Gate(rig.broker), Received()
        turns = parts.pop.turns(parts.rpc, access=None, is_ready=lambda: True, confirms=True)
        turns.begin()
        assert turns.take(connection, requests[0], 0, first)
        turns.finish()
        await turn()
        connection.receive(second)
        turns.begin()
        assert (turns.take_matching(connection), len(connection.received)) == (False, len(second))
        gate.open.set()
        await turns.drain()
        assert (turns.take_matching(connection), len(connection.received)) == (True, 0)
        turns.finish()
        await turns.drain()

    rig(scene)
