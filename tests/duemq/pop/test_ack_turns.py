"""Acknowledgements of one turn: one append, and a response to each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from duemq.net import codec
from duemq.pop.templates.ack_templates import AckTemplate
from duemq.pop.templates.frame_templates import TEMPLATES_MAX
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from tests.support.accounts import KEYS, ROOT
from tests.support.pop_client import Popped, advance
from tests.support.pop_frames import PopRig, ack_request, codes, responses, turn, write

ACK = RequestCode.ACK_MESSAGE
WAYS = pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "codec"])


async def popped(rig: PopRig, queues: int = 3, each: int = 5) -> list[Popped]:
    for queue_id in range(queues):
        await rig.send(queue_id, *(b"%d-%d" % (queue_id, number) for number in range(each)))
    return await rig.pop_all(queues * each)


@WAYS
def test_many_acknowledgements_of_several_queues_are_one_append(
    rig: Callable[..., Any], compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig)
        peer, before = await rig.peer(), len(rig.appends.batches)
        requests = [ack_request(message, number) for number, message in enumerate(messages)]
        assert await codes(peer, requests) == dict.fromkeys(range(15), 0)
        [tags] = rig.appends.batches[before:]
        assert tags == ["bAck"] * 3, "one record for the checkpoint of each queue"
        assert rig.requests_measured(ACK) == {0: 15}
        await advance(rig.broker, rig.clock, 70_000)
        assert await rig.client.pop() == []

    rig(scene, compiled=compiled)


@WAYS
def test_unacknowledged_messages_of_a_pop_are_visible_again(
    rig: Callable[..., Any], compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig)
        peer = await rig.peer()
        acked = messages[::2]
        requests = [ack_request(message, number) for number, message in enumerate(acked)]
        await codes(peer, requests)
        await advance(rig.broker, rig.clock, 70_000)
        again = await rig.pop_all(len(messages) - len(acked))
        assert sorted(m.body for m in again) == sorted(m.body for m in messages[1::2])

    rig(scene, compiled=compiled)


@pytest.mark.sampled
@WAYS
@pytest.mark.parametrize(
    ("invalid", "code"),
    [
        pytest.param({"queueId": 4}, 13, id="queue"),
        pytest.param({"queueId": 10**10}, None, id="queue beyond 32 bits"),
        pytest.param({"offset": 6}, 208, id="offset"),
        pytest.param({"offset": 10**17}, 208, id="far offset"),
        pytest.param({"offset": -1}, 208, id="negative offset"),
        pytest.param({"revive": 8}, 29, id="revive queue"),
        pytest.param({"revive": 999}, 0, id="orderly, which changes nothing"),
        pytest.param({"topic": "U"}, 17, id="topic"),
        pytest.param({"extraInfo": "0 1 2"}, 29, id="handle"),
        pytest.param({"invisible": 10**16}, 29, id="time that no timer may have"),
    ],
)
def test_an_invalid_acknowledgement_does_not_affect_others(
    rig: Callable[..., Any], compiled: bool, invalid: dict[str, int | str], code: int | None
) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=1)
        peer, changes = await rig.peer(), dict[str, Any](invalid)
        parts = messages[2].handle.split(" ")
        parts[2] = str(changes.pop("invisible", parts[2]))
        parts[3] = str(changes.pop("revive", parts[3]))
        changes = {"extraInfo": " ".join(parts)} | changes
        requests = [ack_request(message, number) for number, message in enumerate(messages)]
        requests[2] = ack_request(messages[2], 2, **changes)
        found = await codes(peer, requests)
        refused = found.pop(2)
        assert refused == code if code is not None else refused != 0
        assert found == {0: 0, 1: 0, 3: 0, 4: 0}
        assert rig.requests_measured(ACK) == Counter([0] * 4 + [refused])
        await advance(rig.broker, rig.clock, 70_000)
        assert [message.body for message in await rig.client.pop()] == [b"0-2"]

    rig(scene, compiled=compiled)


@pytest.mark.parametrize("topics", [2, TEMPLATES_MAX, TEMPLATES_MAX + 1])
def test_the_topics_of_a_connection_have_their_own_templates(
    rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    """With more topics than a connection has templates, the codec decodes each frame."""
    decoded, of = [], AckTemplate.of

    def counted(frame: bytes, request: Request) -> AckTemplate | None:
        decoded.append(request.fields["topic"])
        return of(frame, request)

    monkeypatch.setattr(AckTemplate, "of", counted)

    async def scene(rig: PopRig) -> None:
        names = [f"T{number}" for number in range(topics)]
        for name in names:
            await rig.send(0, b"a", b"b", b"c", topic=name)
        messages = [await rig.pop_all(3, name) for name in names]
        in_turn = [message for each in zip(*messages, strict=True) for message in each]
        requests = [ack_request(message, number) for number, message in enumerate(in_turn)]
        peer = await rig.peer()
        assert await codes(peer, requests) == dict.fromkeys(range(3 * topics), 0)
        assert len(decoded) == (topics if topics <= TEMPLATES_MAX else 3 * topics)
        await advance(rig.broker, rig.clock, 70_000)
        assert [await rig.client.pop(name) for name in names] == [[]] * topics

    rig(scene)


@WAYS
def test_a_repeated_acknowledgement_is_stored_once(rig: Callable[..., Any], compiled: bool) -> None:
    async def scene(rig: PopRig) -> None:
        first, second = await popped(rig, queues=1, each=2)
        peer, before = await rig.peer(), len(rig.appends.batches)
        requests = [ack_request(first, number) for number in range(3)]
        assert await codes(peer, requests) == {0: 0, 1: 0, 2: 0}
        assert rig.appends.batches[before:] == [["ack"]]
        assert await codes(peer, [ack_request(first, 9)]) == {9: 0}
        await advance(rig.broker, rig.clock, 70_000)
        assert [message.body for message in await rig.client.pop()] == [second.body]

    rig(scene, compiled=compiled)


@WAYS
def test_frames_cut_at_any_byte_are_read_once_complete(
    rig: Callable[..., Any], compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=2)
        peer = await rig.peer()
        data = b"".join(
            codec.encode_request(ack_request(message, number))
            for number, message in enumerate(messages)
        )
        for at in range(0, len(data), 97):
            peer.writer.write(data[at : at + 97])
            await turn()
        found = await responses(peer, 10)
        assert {response.code for response in found.values()} == {0}
        await advance(rig.broker, rig.clock, 70_000)
        assert await rig.client.pop() == []

    rig(scene, compiled=compiled)


@WAYS
def test_acknowledgements_of_a_topic_deleted_between_turns_are_refused(
    rig: Callable[..., Any], compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=1)
        peer = await rig.peer()
        assert await codes(peer, [ack_request(messages[0], 0), ack_request(messages[1], 1)]) == {
            0: 0,
            1: 0,
        }
        assert (await rig.remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        assert await codes(peer, [ack_request(m, n) for n, m in enumerate(messages)]) == (
            dict.fromkeys(range(5), 17)
        )

    rig(scene, compiled=compiled)


@WAYS
def test_several_connections_and_topics_share_an_append(
    rig: Callable[..., Any], compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=2)
        await rig.broker.parts.topics.ensure("U", queues=1)
        await rig.send(0, b"u1", b"u2", topic="U")
        others = await rig.pop_all(2, "U")
        one, two = await rig.peers(2)
        before = len(rig.appends.batches)
        mixed = [messages[0], others[0], messages[1], others[1], *messages[2:5]]
        write(one, [ack_request(message, number) for number, message in enumerate(mixed)])
        write(two, [ack_request(message, number) for number, message in enumerate(messages[5:])])
        assert {response.code for response in (await responses(one, 7)).values()} == {0}
        assert {response.code for response in (await responses(two, 5)).values()} == {0}
        assert rig.appends.batches[before:] == [["bAck"] * 3]
        await advance(rig.broker, rig.clock, 70_000)
        assert [await rig.client.pop(topic) for topic in ("T", "U")] == [[], []]

    rig(scene, compiled=compiled)


@WAYS
def test_one_way_acknowledgements_are_stored_without_a_response(
    rig: Callable[..., Any], compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=1)
        peer = await rig.peer()
        requests = [ack_request(message, number) for number, message in enumerate(messages)]
        for request in requests[1:4]:
            request.oneway = True
        write(peer, requests)
        assert {o: a.code for o, a in (await responses(peer, 2)).items()} == {0: 0, 4: 0}
        await advance(rig.broker, rig.clock, 70_000)
        assert await rig.client.pop() == []
        assert rig.requests_measured(ACK) == {0: 5}

    rig(scene, compiled=compiled)


def test_each_acknowledgement_requires_a_signature(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=1)
        peer = await rig.peer()
        requests = [ack_request(message, number) for number, message in enumerate(messages)]
        signed = [ROOT.sign(request) for request in requests]
        names = signed[0].fields.keys() - requests[0].fields
        signed[1].fields |= {name: signed[0].fields[name] for name in names}  # of another
        signed[2] = requests[2]  # without any
        found = await codes(peer, signed)
        assert {opaque for opaque, code in found.items() if code == 0} == {0, 3, 4}
        await advance(rig.broker, rig.clock, 70_000)
        assert [m.body for m in await rig.client.pop()] == [b"0-1", b"0-2"]

    rig(scene, credentials=ROOT, **KEYS)


def test_messages_of_refused_acknowledgements_are_visible_again(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=2, each=2)
        peer, rig.appends.fault = await rig.peer(), "disk full"
        requests = [ack_request(message, number) for number, message in enumerate(messages)]
        write(peer, requests)
        found = await responses(peer, 4)
        assert {response.code for response in found.values()} == {1}
        assert all("disk full" in (response.remark or "") for response in found.values())
        assert await codes(peer, requests[:2]) == {0: 0, 1: 0}
        await advance(rig.broker, rig.clock, 70_000)
        again = await rig.pop_all(2)
        assert sorted(m.body for m in again) == sorted(m.body for m in messages[2:])

    rig(scene)


def test_hostile_group_names_do_not_affect_other_acknowledgements(rig: Callable[..., Any]) -> None:
    async def scene(rig: PopRig) -> None:
        messages = await popped(rig, queues=1)
        peer = await rig.peer()
        groups = ["g", "x" * 40_000, "a\x01b\x02c", "\ud800é", "g"]
        requests = [
            ack_request(message, number, consumerGroup=group)
            for number, (message, group) in enumerate(zip(messages, groups, strict=True))
        ]
        requests[3].fields["consumerGroup"] = "é\x00"
        found = await codes(peer, requests)
        assert (found[0], found[4]) == (0, 0)
        assert found[1] != 0, "its record is too long"
        await advance(rig.broker, rig.clock, 70_000)
        assert [m.body for m in await rig.client.pop()] == [b"0-1", b"0-2", b"0-3"]

    rig(scene)
