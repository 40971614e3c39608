"""Pops of one turn: one append, and no message is lost or popped twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.net.connection import Connection
from duemq.pop.pop import PopProcessor, PopRequest
from duemq.pop.pop_turns import POPS_MAX, PopTurns
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch
from message_store.replication.acknowledgement import Missing
from tests.support.accounts import KEYS, ROOT
from tests.support.pop_client import advance, popped
from tests.support.pop_frames import PopRig, ack_request, codes, responses, turn, write
from tests.support.replica_rig import until

POP = RequestCode.POP_MESSAGE


def bodies_of(response: Response, topic: str = "T") -> list[bytes]:
    return [message.body for message in popped(response, topic)] if response.code == 0 else []


async def send_numbers(rig: PopRig, count: int, queues: int = 4, tags: str = "") -> list[bytes]:
    """Send numbered messages in turn to the queues; return their bodies."""
    bodies = [b"%s%d" % (tags.encode(), number) for number in range(count)]
    for number, body in enumerate(bodies):
        await rig.send(number % queues, body, tags=tags)
    return bodies


def test_pops_and_acknowledgements_of_a_turn_are_one_append(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 40)
        first = await rig.client.pop(maxMsgNums=8)
        one, two, three = await rig.peers(3)
        before = len(rig.appends.batches)
        write(one, [ack_request(message, number) for number, message in enumerate(first)])
        write(two, [rig.pop_request(1, maxMsgNums=10), ack_request(first[0], 2)])
        write(three, [rig.pop_request(1, maxMsgNums=10)])
        acked = await responses(one, 8)
        both, only = await responses(two, 2), await responses(three, 1)
        assert {
            response.code for response in (*acked.values(), *both.values(), *only.values())
        } == {0}
        [tags] = rig.appends.batches[before:]
        assert (tags[-1], tags[0] in ("ack", "bAck")) == ("ck", True)
        assert sorted(tags) == tags, "acknowledgements, then checkpoints"
        found = [*bodies_of(both[1]), *bodies_of(only[1])]
        assert len(found) == len(set(found)) == 20
        rest = await rig.pop_all(12)
        assert sorted([*found, *(m.body for m in rest), *(m.body for m in first)]) == sorted(sent)
        assert rig.requests_measured(RequestCode.ACK_MESSAGE) == {0: 9}

    rig(scene)


def test_two_pops_of_one_connection_have_one_write(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 6)
        peer = await rig.peer()
        write(peer, [rig.pop_request(1, maxMsgNums=3), rig.pop_request(2, maxMsgNums=3)])
        found = await responses(peer, 2)
        assert [len(bodies_of(found[opaque])) for opaque in (1, 2)] == [3, 3]
        assert sorted(bodies_of(found[1]) + bodies_of(found[2])) == sorted(sent)
        assert rig.requests_measured(POP) == {0: 2}

    rig(scene)


def test_pops_beyond_the_limit_of_a_turn_are_answered(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        count = POPS_MAX + 8
        sent = await send_numbers(rig, count)
        peers = await rig.peers(count)
        before = len(rig.appends.batches)
        for number, peer in enumerate(peers):
            write(peer, [rig.pop_request(number, maxMsgNums=1)])
        found = [
            bodies_of(response) for p in peers for response in (await responses(p, 1)).values()
        ]
        assert sorted(body for each in found for body in each) == sorted(sent)
        assert {len(each) for each in found} == {1}
        assert max(len(tags) for tags in rig.appends.batches[before:]) == POPS_MAX
        assert rig.requests_measured(POP) == {0: count}

    rig(scene)


def test_refused_checkpoints_return_all_messages_to_the_queues(rig: Callable[..., Any]) -> None:
    """The handler serves the pops again, one by one."""

    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 12)
        peers, rig.appends.fault = await rig.peers(3), "disk full"
        for peer in peers:
            write(peer, [rig.pop_request(1, maxMsgNums=4)])
        found = [(await responses(peer, 1))[1] for peer in peers]
        assert (rig.appends.refused, {response.code for response in found}) == (1, {0})
        assert sorted(body for response in found for body in bodies_of(response)) == sorted(sent)
        assert await rig.client.pop() == []
        assert rig.requests_measured(POP) == {0: 3, 210: 1}
        assert rig.broker.parts.stats.totals.pulls_missed == 1
        statuses = {labels[-1] for labels, _ in rig.broker.parts.pop.figures.puts}
        assert statuses == {"PUT_OK"}, "the turn that was undone is not counted"

    rig(scene)


def test_messages_remain_in_the_queues_if_the_store_refuses_records(
    rig: Callable[..., Any],
) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 4)
        messages = await rig.pop_all(4)
        await send_numbers(rig, 4, tags="b")
        peer, path = await rig.peer(), rig.broker.parts.put_path
        working, path.put = path.put, refuse_all
        pop, *acks = [rig.pop_request(1), ack_request(messages[0], 2), ack_request(messages[1], 3)]
        assert await codes(peer, [pop, *acks]) == {1: 1, 2: 1, 3: 1}
        path.put = working
        assert sorted(m.body for m in await rig.client.pop()) == [b"b%d" % n for n in range(4)]
        await advance(rig.broker, rig.clock, 70_000)
        again = await rig.pop_all(8)
        assert sorted(m.body for m in again) == sorted([*sent, *(b"b%d" % n for n in range(4))])

    rig(scene)


def refuse_all(batch: PutBatch) -> None:
    for row in range(batch.count):
        batch.refuse(row, 1, "disk full")


def test_pops_are_answered_after_a_failed_append(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await send_numbers(rig, 2)
        first = await rig.pop_all(2)
        sent = await send_numbers(rig, 4, tags="b")
        one, two = await rig.peers(2)
        rig.appends.failure = OSError("broken")
        write(one, [ack_request(first[0], 1)])
        write(two, [rig.pop_request(1)])
        refused = (await responses(one, 1))[1]
        assert (refused.code, "broken" in refused.remark) == (1, True)
        assert sorted(bodies_of((await responses(two, 1))[1])) == sorted(sent)
        assert await codes(one, [ack_request(first[0], 2)]) == {2: 0}
        await advance(rig.broker, rig.clock, 70_000)
        again = sorted(m.body for m in await rig.pop_all(5))
        assert again == sorted([first[1].body, *sent])
        assert first[0].body in messages

    rig(scene)


def test_an_undone_pop_also_undoes_messages_skipped_by_later_pops(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pop of the same turn without messages advances the offset as well."""
    monkeypatch.setattr("duemq.pop.queue_reader.UNITS_LOOKED_AT_MAX", 2)

    async def scene(rig: PopRig) -> None:
        await rig.broker.parts.topics.ensure("One", queues=1)
        await rig.send(0, b"a1", b"a2", topic="One", tags="a")
        await rig.send(0, b"b", topic="One", tags="b")
        peers, rig.appends.fault = await rig.peers(2), "disk full"
        for peer in peers:
            request = rig.pop_request(1, topic="One", maxMsgNums=2, exp="a", expType="TAG")
            write(peer, [request])
        found = [(await responses(peer, 1))[1] for peer in peers]
        assert rig.appends.refused == 1
        assert sorted(response.code for response in found) == [0, 210]
        assert [body for response in found for body in bodies_of(response)] == [b"a1", b"a2"]

    rig(scene)


def test_a_too_long_invisible_time_refuses_one_pop_of_a_turn(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 12)
        peers, messages = await rig.peers(3), []
        for number, peer in enumerate(peers):
            changes = {"invisibleTime": 10**12} if number == 1 else {}
            write(peer, [rig.pop_request(1, maxMsgNums=4, **changes)])
        found = [(await responses(peer, 1))[1] for peer in peers]
        assert [response.code for response in found] == [0, 29, 0]
        messages = [*bodies_of(found[0]), *bodies_of(found[2])]
        assert len(set(messages)) == 8
        rest = [message.body for message in await rig.pop_all(4)]
        assert sorted([*messages, *rest]) == sorted(sent)

    rig(scene)


def test_an_invalid_pop_does_not_affect_others_of_its_turn(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 4)
        peers = await rig.peers(4)
        for peer, changes in zip(
            peers, ({"maxMsgNums": 33}, {"topic": "U"}, {}, {"queueId": 9}), strict=True
        ):
            write(peer, [rig.pop_request(1, **changes)])
        found = [(await responses(peer, 1))[1] for peer in peers]
        assert [response.code for response in found] == [29, 17, 0, 29]
        assert sorted(bodies_of(found[2])) == sorted(sent)
        assert rig.requests_measured(POP) == {29: 2, 17: 1, 0: 1}

    rig(scene)


def test_a_pop_whose_messages_cannot_be_read_does_not_affect_others_of_its_turn(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = PopProcessor.collect

    def unreadable(self: PopProcessor, arguments: PopRequest) -> Any:
        if arguments.count_max == 3:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "unreadable")
        return collect(self, arguments)

    monkeypatch.setattr(PopProcessor, "collect", unreadable)

    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 4)
        peers = await rig.peers(2)
        for peer, count in zip(peers, (3, 4), strict=True):
            write(peer, [rig.pop_request(1, maxMsgNums=count)])
        found = [(await responses(peer, 1))[1] for peer in peers]
        assert [response.code for response in found] == [ResponseCode.SYSTEM_ERROR, 0]
        assert found[0].remark == "unreadable"
        assert sorted(bodies_of(found[1])) == sorted(sent)

    rig(scene)


def test_a_pop_without_messages_is_a_long_poll(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pop is admitted once; the handler does not admit it again."""
    admitted, admit = [], PopProcessor.admit

    def counted(self: PopProcessor, request: Request) -> PopRequest:
        admitted.append(request)
        return admit(self, request)

    monkeypatch.setattr(PopProcessor, "admit", counted)

    async def scene(rig: PopRig) -> None:
        peers = await rig.peers(2)
        for peer in peers:
            write(peer, [rig.pop_request(1, pollTime=30_000)])
        await until(lambda: len(rig.broker.parts.long_polls) == 2)
        await rig.send(0, b"a", b"b")
        found = [bodies_of((await responses(peer, 1))[1]) for peer in peers]
        assert sorted(body for each in found for body in each) == [b"a", b"b"]
        assert rig.requests_measured(POP) == {0: 2}
        assert len(admitted) == 2

    rig(scene)


def test_orderly_pops_are_left_to_their_handler(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"a", b"b")
        peer, before = await rig.peer(), len(rig.appends.batches)
        write(peer, [rig.pop_request(1, order="true", queueId=0)])
        assert bodies_of((await responses(peer, 1))[1]) == [b"a", b"b"]
        assert len(rig.appends.batches) == before, "an orderly pop has no checkpoint"
        write(peer, [rig.pop_request(2, order="true", queueId=0)])
        assert (await responses(peer, 1))[2].code == 210

    rig(scene)


class Gate:
    """Gate that delays the confirmations of a store until it is opened."""

    def __init__(self, broker: Broker, missing: Missing | None = None) -> None:
        self.open, self.reached = asyncio.Event(), asyncio.Event()
        self.missing, self.waits = missing, 0
        broker.store.wait_confirmed = self.wait

    async def wait(self, end_offset: int) -> Missing | None:
        self.waits += 1
        self.reached.set()
        await self.open.wait()
        return self.missing


@pytest.mark.parametrize(
    ("missing", "code"), [(None, 0), (Missing.DISK, 10)], ids=["in time", "not in time"]
)
def test_sync_flush_delays_responses_until_the_sync(
    rig: Callable[..., Any], missing: Missing | None, code: int
) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 6)
        first = await rig.client.pop(maxMsgNums=2)
        peer, gate = await rig.peer(), Gate(rig.broker, missing)
        invalid = ack_request(first[0], 3, offset=99)
        write(peer, [ack_request(m, n) for n, m in enumerate(first)])
        write(peer, [rig.pop_request(2), invalid])
        assert {o: a.code for o, a in (await responses(peer, 1)).items()} == {3: 208}
        await turn()
        place = rig.broker.parts.offsets.query("g", "T", 0) or 0
        gate.open.set()
        found = await responses(peer, 3)
        assert {response.code for response in found.values()} == {code}
        assert gate.waits == 1, "one wait for all of the turn"
        others = set(sent) - {message.body for message in first}
        assert set(bodies_of(found[2])) == (others if code == 0 else set())
        assert place <= 1, "the offset is not committed before the sync"
        assert (await rig.client.pop()) == [], "what is in the log is popped, confirmed or not"

    rig(scene, flushDiskType="SYNC_FLUSH")


class Written:
    """Connection that records the written bytes."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def write(self, data: bytes) -> None:
        self.frames.append(data)


def test_a_drain_waits_for_unsent_responses(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        await send_numbers(rig, 2)
        parts, gate, connection = rig.broker.parts, Gate(rig.broker), Written()
        turns = parts.pop.turns(parts.rpc, access=None, is_ready=lambda: False, confirms=True)
        turns.begin()
        assert turns.take(connection, rig.pop_request(1), 0, b"")
        turns.finish()
        drained = asyncio.create_task(turns.drain())
        await turn()
        assert (drained.done(), connection.frames) == (False, [])
        gate.open.set()
        await drained
        [frame] = connection.frames
        assert b'"opaque":1' in frame

    rig(scene)


def test_unconfirmed_acknowledgements_are_bounded(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound, a request goes to its handler, which waits for its own confirmation."""
    monkeypatch.setattr("duemq.pop.pop_turns.UNCONFIRMED_MAX", 3)

    async def scene(rig: PopRig) -> None:
        await send_numbers(rig, 6)
        acks = [ack_request(m, number) for number, m in enumerate(await rig.pop_all(6))]
        parts, gate = rig.broker.parts, Gate(rig.broker)
        turns = parts.pop.turns(parts.rpc, access=None, is_ready=lambda: False, confirms=True)

        def take(*requests: Request) -> list[bool]:
            turns.begin()
            accepted = [turns.take(Written(), request, 0, b"") for request in requests]
            turns.finish()
            return accepted

        assert take(*acks[:3]) == [True, True, True]
        await turn()
        assert take(acks[3]) == [True], "exactly as many as the bound are unconfirmed"
        await turn()
        assert take(acks[4]) == take(rig.pop_request(9)) == [False]
        gate.open.set()
        await turns.drain()
        assert take(acks[5]) == [True]
        await turns.drain()

    rig(scene)


def test_each_pop_of_a_turn_requires_a_signature(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 4)
        peers = await rig.peers(3)
        requests = [ROOT.sign(rig.pop_request(1)) for _ in peers]
        requests[0] = rig.pop_request(1)
        requests[1].fields["maxMsgNums"] = "31"  # after it was signed
        for peer, request in zip(peers, requests, strict=True):
            write(peer, [request])
        found = [(await responses(peer, 1))[1] for peer in peers]
        assert 0 not in (found[0].code, found[1].code)
        assert sorted(bodies_of(found[2])) == sorted(sent)

    rig(scene, credentials=ROOT, **KEYS)


def test_a_connection_closed_in_a_turn_does_not_affect_others(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 4)
        messages = await rig.pop_all(4)
        aborted, malformed, other = await rig.peers(3)
        write(aborted, [ack_request(messages[0], 1), rig.pop_request(2)])
        aborted.writer.transport.abort()
        write(malformed, [ack_request(messages[1], 1)])
        malformed.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        write(other, [ack_request(messages[n], n) for n in (2, 3)])
        assert {o: a.code for o, a in (await responses(other, 2)).items()} == {2: 0, 3: 0}
        assert {o: a.code for o, a in (await responses(malformed, 1)).items()} == {1: 0}
        assert await malformed.at_end()
        await advance(rig.broker, rig.clock, 70_000)
        again = [message.body for message in await rig.client.pop()]
        assert set(again) <= {messages[0].body} < set(sent)

    rig(scene)


def test_a_topic_deleted_between_turns_returns_no_messages(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        await send_numbers(rig, 4)
        peer = await rig.peer()
        assert await codes(peer, [rig.pop_request(1, maxMsgNums=1)]) == {1: 0}
        assert (await rig.remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        assert await codes(peer, [rig.pop_request(2)]) == {2: 17}

    rig(scene)


def test_pops_that_match_a_template_are_read_without_decoding(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, take = [], PopTurns.take

    def counted(
        turns: PopTurns,
        connection: Connection,
        request: Request,
        serialize_type: int,
        frame: bytes,
    ) -> bool:
        decoded.append(request.code)
        return take(turns, connection, request, serialize_type, frame)

    monkeypatch.setattr(PopTurns, "take", counted)

    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 40)
        peer, found = await rig.peer(), []
        for opaque in range(10):
            rig.clock.advance(3)
            pop = rig.pop_request(opaque, maxMsgNums=4)
            write(peer, [pop])
            found += bodies_of((await responses(peer, 1))[opaque])
        assert sorted(found) == sorted(sent)
        assert decoded == [POP]
        assert rig.requests_measured(POP) == {0: 10}

    rig(scene)


def test_a_matching_pop_after_acknowledgements_shares_their_turn(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        sent = await send_numbers(rig, 24)
        peer, found, opaque = await rig.peer(), [], 0
        messages: list[Any] = []
        for _ in range(6):
            requests = [ack_request(m, opaque + at) for at, m in enumerate(messages, 1)]
            opaque += len(requests) + 1
            before = len(rig.appends.batches)
            write(peer, [*requests, rig.pop_request(opaque, maxMsgNums=4)])
            got = await responses(peer, len(requests) + 1)
            assert {each.code for each in got.values()} == {0}
            messages = popped(got[opaque], "T")
            found += [message.body for message in messages]
            assert len(rig.appends.batches) == before + 1
            opaque += 1
        assert sorted(found) == sorted(sent)

    rig(scene)
