"""Pops that are written together: one append, and no message is lost or popped twice."""

from __future__ import annotations

import asyncio

import pytest

from duemq.net.codes import RequestCode
from duemq.pop.pop_turns import POPS_MAX
from message_store.replication.acknowledgement import Missing
from tests.support.accounts import KEYS, ROOT
from tests.support.pop_client import advance, popped
from tests.support.pop_frames import ack_request, answers, codes, turn, write

POP = RequestCode.POP_MESSAGE


def bodies_of(answer, topic="T"):
    return [message.body for message in popped(answer, topic)] if answer.code == 0 else []


async def send_numbers(rig, count, queues=4, tags=""):
    """Send numbered messages in turn to the queues; return their bodies."""
    bodies = [b"%s%d" % (tags.encode(), number) for number in range(count)]
    for number, body in enumerate(bodies):
        await rig.send(number % queues, body, tags=tags)
    return bodies


def test_pops_and_acknowledgements_of_a_turn_are_one_append(rig):
    async def scene(rig):
        sent = await send_numbers(rig, 40)
        first = await rig.client.pop(maxMsgNums=8)
        one, two, three = await rig.peers(3)
        before = len(rig.appends.batches)
        write(one, [ack_request(message, number) for number, message in enumerate(first)])
        write(two, [rig.pop_request(1, maxMsgNums=10), ack_request(first[0], 2)])
        write(three, [rig.pop_request(1, maxMsgNums=10)])
        acked = await answers(one, 8)
        both, only = await answers(two, 2), await answers(three, 1)
        assert {answer.code for answer in (*acked.values(), *both.values(), *only.values())} == {0}
        [tags] = rig.appends.batches[before:]
        assert (tags[-1], tags[0] in ("ack", "bAck")) == ("ck", True)
        assert sorted(tags) == tags, "acknowledgements, then checkpoints"
        found = [*bodies_of(both[1]), *bodies_of(only[1])]
        assert len(found) == len(set(found)) == 20
        rest = await rig.pop_all(12)
        assert sorted([*found, *(m.body for m in rest), *(m.body for m in first)]) == sorted(sent)
        assert rig.requests_measured(RequestCode.ACK_MESSAGE) == {0: 9}

    rig(scene)


def test_two_pops_of_one_connection_in_one_write(rig):
    async def scene(rig):
        sent = await send_numbers(rig, 6)
        peer = await rig.peer()
        write(peer, [rig.pop_request(1, maxMsgNums=3), rig.pop_request(2, maxMsgNums=3)])
        found = await answers(peer, 2)
        assert [len(bodies_of(found[opaque])) for opaque in (1, 2)] == [3, 3]
        assert sorted(bodies_of(found[1]) + bodies_of(found[2])) == sorted(sent)
        assert rig.requests_measured(POP) == {0: 2}

    rig(scene)


def test_more_pops_than_one_turn_takes(rig):
    async def scene(rig):
        count = POPS_MAX + 8
        sent = await send_numbers(rig, count)
        peers = await rig.peers(count)
        before = len(rig.appends.batches)
        for number, peer in enumerate(peers):
            write(peer, [rig.pop_request(number, maxMsgNums=1)])
        found = [bodies_of(answer) for p in peers for answer in (await answers(p, 1)).values()]
        assert sorted(body for each in found for body in each) == sorted(sent)
        assert {len(each) for each in found} == {1}
        assert max(len(tags) for tags in rig.appends.batches[before:]) == POPS_MAX
        assert rig.requests_measured(POP) == {0: count}

    rig(scene)


def test_refused_checkpoints_give_all_messages_back(rig):
    """Their handler pops them again, one by one."""

    async def scene(rig):
        sent = await send_numbers(rig, 12)
        peers, rig.appends.fault = await rig.peers(3), "disk full"
        for peer in peers:
            write(peer, [rig.pop_request(1, maxMsgNums=4)])
        found = [(await answers(peer, 1))[1] for peer in peers]
        assert (rig.appends.refused, {answer.code for answer in found}) == (1, {0})
        assert sorted(body for answer in found for body in bodies_of(answer)) == sorted(sent)
        assert await rig.client.pop() == []
        assert rig.requests_measured(POP) == {0: 3, 210: 1}

    rig(scene)


def test_a_store_that_refuses_gives_nothing_and_keeps_all(rig):
    async def scene(rig):
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


def refuse_all(batch):
    for row in range(batch.count):
        batch.refuse(row, 1, "disk full")


def test_an_append_that_fails_harms_no_pop(rig):
    async def scene(rig):
        messages = await send_numbers(rig, 2)
        first = await rig.pop_all(2)
        sent = await send_numbers(rig, 4, tags="b")
        one, two = await rig.peers(2)
        rig.appends.failure = OSError("broken")
        write(one, [ack_request(first[0], 1)])
        write(two, [rig.pop_request(1)])
        refused = (await answers(one, 1))[1]
        assert (refused.code, "broken" in refused.remark) == (1, True)
        assert sorted(bodies_of((await answers(two, 1))[1])) == sorted(sent)
        assert await codes(one, [ack_request(first[0], 2)]) == {2: 0}
        await advance(rig.broker, rig.clock, 70_000)
        again = sorted(m.body for m in await rig.pop_all(5))
        assert again == sorted([first[1].body, *sent])
        assert first[0].body in messages

    rig(scene)


def test_what_a_later_pop_skipped_does_not_keep_messages_from_being_given_back(rig, monkeypatch):
    """A pop of the same turn that finds nothing moves on as well."""
    monkeypatch.setattr("duemq.pop.queue_reader.UNITS_LOOKED_AT_MAX", 2)

    async def scene(rig):
        await rig.broker.parts.topics.ensure("One", queues=1)
        await rig.send(0, b"a1", b"a2", topic="One", tags="a")
        await rig.send(0, b"b", topic="One", tags="b")
        peers, rig.appends.fault = await rig.peers(2), "disk full"
        for peer in peers:
            request = rig.pop_request(1, topic="One", maxMsgNums=2, exp="a", expType="TAG")
            write(peer, [request])
        found = [(await answers(peer, 1))[1] for peer in peers]
        assert rig.appends.refused == 1
        assert sorted(answer.code for answer in found) == [0, 210]
        assert [body for answer in found for body in bodies_of(answer)] == [b"a1", b"a2"]

    rig(scene)


def test_an_invisible_time_that_is_too_long_refuses_that_pop_alone(rig):
    async def scene(rig):
        sent = await send_numbers(rig, 12)
        peers, messages = await rig.peers(3), []
        for number, peer in enumerate(peers):
            changes = {"invisibleTime": 10**12} if number == 1 else {}
            write(peer, [rig.pop_request(1, maxMsgNums=4, **changes)])
        found = [(await answers(peer, 1))[1] for peer in peers]
        assert [answer.code for answer in found] == [0, 29, 0]
        messages = [*bodies_of(found[0]), *bodies_of(found[2])]
        assert len(set(messages)) == 8
        rest = [message.body for message in await rig.pop_all(4)]
        assert sorted([*messages, *rest]) == sorted(sent)

    rig(scene)


def test_invalid_pops_are_refused_alone(rig):
    async def scene(rig):
        sent = await send_numbers(rig, 4)
        peers = await rig.peers(4)
        for peer, changes in zip(
            peers, ({"maxMsgNums": 33}, {"topic": "U"}, {}, {"queueId": 9}), strict=True
        ):
            write(peer, [rig.pop_request(1, **changes)])
        found = [(await answers(peer, 1))[1] for peer in peers]
        assert [answer.code for answer in found] == [29, 17, 0, 29]
        assert sorted(bodies_of(found[2])) == sorted(sent)
        assert rig.requests_measured(POP) == {29: 2, 17: 1, 0: 1}

    rig(scene)


def test_a_pop_that_finds_nothing_is_held(rig):
    async def scene(rig):
        peers = await rig.peers(2)
        for peer in peers:
            write(peer, [rig.pop_request(1, pollTime=30_000)])
        await turn()
        await rig.send(0, b"a", b"b")
        found = [bodies_of((await answers(peer, 1))[1]) for peer in peers]
        assert sorted(body for each in found for body in each) == [b"a", b"b"]
        assert rig.requests_measured(POP) == {0: 2}

    rig(scene)


def test_orderly_pops_are_left_to_their_handler(rig):
    async def scene(rig):
        await rig.send(0, b"a", b"b")
        peer, before = await rig.peer(), len(rig.appends.batches)
        write(peer, [rig.pop_request(1, order="true", queueId=0)])
        assert bodies_of((await answers(peer, 1))[1]) == [b"a", b"b"]
        assert len(rig.appends.batches) == before, "an orderly pop has no checkpoint"
        write(peer, [rig.pop_request(2, order="true", queueId=0)])
        assert (await answers(peer, 1))[2].code == 210

    rig(scene)


class Gate:
    """Confirmations of a store, which wait until the gate is open."""

    def __init__(self, broker, missing=None):
        self.open, self.reached = asyncio.Event(), asyncio.Event()
        self.missing, self.waits = missing, 0
        broker.store.wait_confirmed = self.wait

    async def wait(self, end_offset):
        self.waits += 1
        self.reached.set()
        await self.open.wait()
        return self.missing


@pytest.mark.parametrize(
    ("missing", "code"), [(None, 0), (Missing.DISK, 10)], ids=["in time", "not in time"]
)
def test_with_sync_flush_answers_come_after_the_sync(rig, missing, code):
    async def scene(rig):
        sent = await send_numbers(rig, 6)
        first = await rig.client.pop(maxMsgNums=2)
        peer, gate = await rig.peer(), Gate(rig.broker, missing)
        invalid = ack_request(first[0], 3, offset=99)
        write(peer, [ack_request(m, n) for n, m in enumerate(first)])
        write(peer, [rig.pop_request(2), invalid])
        assert {o: a.code for o, a in (await answers(peer, 1)).items()} == {3: 208}
        await turn()
        place = rig.broker.parts.offsets.query("g", "T", 0) or 0
        gate.open.set()
        found = await answers(peer, 3)
        assert {answer.code for answer in found.values()} == {code}
        assert gate.waits == 1, "one wait for all of the turn"
        others = set(sent) - {message.body for message in first}
        assert set(bodies_of(found[2])) == (others if code == 0 else set())
        assert place <= 1, "the offset is not committed before the sync"
        assert (await rig.client.pop()) == [], "what is in the log is popped, confirmed or not"

    rig(scene, flushDiskType="SYNC_FLUSH")


class Written:
    """A connection that records what is written."""

    unsent_bytes = 0

    def __init__(self):
        self.frames = []

    def write(self, data):
        self.frames.append(data)


def test_a_drain_waits_for_the_answers(rig):
    async def scene(rig):
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


def test_every_pop_needs_its_signature(rig):
    async def scene(rig):
        sent = await send_numbers(rig, 4)
        peers = await rig.peers(3)
        requests = [ROOT.sign(rig.pop_request(1)) for _ in peers]
        requests[0] = rig.pop_request(1)
        requests[1].fields["maxMsgNums"] = "31"  # after it was signed
        for peer, request in zip(peers, requests, strict=True):
            write(peer, [request])
        found = [(await answers(peer, 1))[1] for peer in peers]
        assert 0 not in (found[0].code, found[1].code)
        assert sorted(bodies_of(found[2])) == sorted(sent)

    rig(scene, who=ROOT, **KEYS)


def test_a_connection_that_closes_in_a_turn_harms_no_other(rig):
    async def scene(rig):
        sent = await send_numbers(rig, 4)
        messages = await rig.pop_all(4)
        gone, broken, there = await rig.peers(3)
        write(gone, [ack_request(messages[0], 1), rig.pop_request(2)])
        gone.writer.transport.abort()
        write(broken, [ack_request(messages[1], 1)])
        broken.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        write(there, [ack_request(messages[n], n) for n in (2, 3)])
        assert {o: a.code for o, a in (await answers(there, 2)).items()} == {2: 0, 3: 0}
        assert {o: a.code for o, a in (await answers(broken, 1)).items()} == {1: 0}
        assert await broken.at_end()
        await advance(rig.broker, rig.clock, 70_000)
        again = [message.body for message in await rig.client.pop()]
        assert set(again) <= {messages[0].body} < set(sent)

    rig(scene)


def test_a_topic_that_is_deleted_between_two_turns_gives_nothing(rig):
    async def scene(rig):
        await send_numbers(rig, 4)
        peer = await rig.peer()
        assert await codes(peer, [rig.pop_request(1, maxMsgNums=1)]) == {1: 0}
        assert (await rig.asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        assert await codes(peer, [rig.pop_request(2)]) == {2: 17}

    rig(scene)
