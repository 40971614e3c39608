"""Revival: topics that were created again, and messages that cannot be visible again."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_delivery.later_copies import (
    POP_BYTES,
    SEPARATOR_BYTES,
    entry_bytes,
    handle_bytes_max,
)
from delayed_delivery.quarantine import NO_HOST, Reason
from duemq.broker.broker import Broker
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.kernels.preparation import Preparation
from message_store.kernels.registry import KernelEntry
from message_store.log.batch import PutBatch
from message_store.log.properties import PROPERTIES_BYTES_MAX
from message_store.log.record import Record, decode_record
from tests.duemq.pop.conftest import RunScene
from tests.support.bad_records import damage
from tests.support.pop_client import PopClient, Popped, advance, rest
from tests.support.pop_frames import PopRig, ack_request, pop_rig
from tests.support.running_broker import running, small


@pytest.mark.parametrize("count", [2, 4], ids=["fewer messages", "more messages"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_pop_of_a_deleted_topic_revives_no_messages_of_its_successor(
    rig: RunScene, compiled: bool, count: int
) -> None:
    new = [b"new %d" % number for number in range(count)]

    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"old 1", b"old 2", b"old 3")
        assert len(await rig.client.pop(invisibleTime=30_000)) == 3
        assert (await rig.remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        await rig.broker.parts.topics.ensure("T", queues=4)
        await rig.send(0, *new)
        found = await rig.client.pop(invisibleTime=30_000)
        assert [message.body for message in found] == new
        assert (await rig.client.ack(found[0])).code == 0
        await advance(rig.broker, rig.clock, 31_000)
        assert [message.body for message in await rig.client.pop()] == new[1:]
        assert await rig.client.pop() == []

    rig(scene, compiled=compiled)


def test_a_group_that_begins_at_the_end_gets_its_first_revived_message(rig: RunScene) -> None:
    async def scene(rig: PopRig) -> None:
        assert await rig.client.pop(initMode=1) == []
        await rig.send(0, b"m")
        assert len(await rig.client.pop(initMode=1, invisibleTime=5_000)) == 1
        await advance(rig.broker, rig.clock, 6_000)
        assert rig.broker.parts.offsets.query("g", "%RETRY%g_T", 0) == 0  # as Apache's broker
        assert [message.body for message in await rig.client.pop(initMode=1)] == [b"m"]

    rig(scene)


def test_messages_are_revived_while_the_table_of_offsets_is_full(
    rig: RunScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit of the reviver's own progress was refused, which ended the broker."""

    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"m")
        assert len(await rig.client.pop(invisibleTime=5_000)) == 1
        monkeypatch.setattr(rig.broker.parts.offsets, "_pairs_max", 0)
        await advance(rig.broker, rig.clock, 6_000)
        await advance(rig.broker, rig.clock, 60_000)
        assert [message.body for message in await rig.client.pop()] == [b"m"]

    rig(scene)


def change_request(message: Popped, opaque: int) -> Request:
    """Return a request for two more minutes of invisibility."""
    request = ack_request(message, opaque, invisibleTime=120_000)
    request.code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    return request


@pytest.mark.parametrize("request_of", [ack_request, change_request])
@pytest.mark.parametrize("stalled_ms", [1_000, 10_000], ids=["checkpoint is read", "is not read"])
def test_acknowledgements_that_have_arrived_are_read_before_messages_are_revived(
    rig: RunScene,
    monkeypatch: pytest.MonkeyPatch,
    stalled_ms: int,
    request_of: Callable[[Popped, int], Request],
) -> None:
    """After a stall, messages were delivered again that were acknowledged during it."""

    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"m")
        [message] = await rig.client.pop(invisibleTime=10_000)
        revive_ms = rig.clock.now_ms() + 10_000
        peer, sent = await rig.peer(), list[int]()
        assert rig.broker.parts.pop is not None
        reviver = rig.broker.parts.pop.reviver

        def now_ms() -> int:
            if rig.clock.now_ms() >= revive_ms and not sent:
                sent.append(revive_ms)
                peer.send(request_of(message, 1))  # the socket of the broker has it at once
            return rig.clock.now_ms()

        monkeypatch.setattr(reviver, "_clock", SimpleNamespace(now_ms=now_ms, wait=rig.clock.wait))
        await advance(rig.broker, rig.clock, 10_500 - stalled_ms)
        rig.clock.advance(stalled_ms)
        await rest(rig.broker)
        assert sent
        assert (await peer.read_response()).response.code == 0
        await advance(rig.broker, rig.clock, 60_000)
        assert list(rig.broker.parts.pop.figures.retries) == []
        assert await rig.client.pop() == []

    rig(scene)


def store_message(broker: Broker, topic: str, text: bytes, body: bytes = b"m") -> int:
    """Store a message as an Apache broker does: without a reserve. Return its log offset."""
    batch = PutBatch(1, 1 << 16)
    batch.add(
        topic_index=broker.store.topics.add(topic),
        queue_id=0,
        body=body,
        properties=text,
        born_ms=1,
        born_host=NO_HOST,
        store_host=NO_HOST,
    )
    broker.store.put(batch)
    assert batch.rows[0]["status"] == 0
    return int(batch.rows[0]["phys_offset"])


def filled(size: int) -> bytes:
    """Return a property text of this size."""
    return b"a\x01" + b"x" * (size - 3) + b"\x02"


def quarantined(broker: Broker) -> list[Record]:
    """Return the records of the quarantine topic."""
    units = broker.store.units(QUARANTINE_TOPIC, 0, 0, 100)
    return [broker.store.read_record(at) for at in units["phys_offset"].tolist()]


def bodies(found: list[Popped]) -> set[bytes]:
    return {message.body for message in found}


@pytest.mark.finding("3D1")
@pytest.mark.parametrize("size", [32_700, 32_767])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_message_without_room_for_its_copy_goes_to_quarantine_alone(
    rig: RunScene, compiled: bool, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"same queue")
        store_message(rig.broker, "T", filled(size))
        await rig.send(1, b"same topic")
        assert len(await rig.client.pop(invisibleTime=5_000)) == 3
        others = [PopClient(rig.remote, rig.clock, group) for group in "hi"]
        await rig.send(0, b"other topic", topic="U")
        for other in others:
            assert len(await other.pop("U", invisibleTime=5_000)) == 1
        await advance(rig.broker, rig.clock, 6_000)
        assert bodies(await rig.client.pop()) == {b"same queue", b"same topic"}
        for other in others:
            assert len(await other.pop("U")) == 1
        [record] = quarantined(rig.broker)
        assert record.properties["DUEMQ_REASON"] == "illegal"
        assert (record.properties["DUEMQ_TOPIC"], record.properties["DUEMQ_GROUP"]) == ("T", "g")
        original = decode_record(memoryview(record.body), 0)
        assert (original.body, original.property_text) == (b"m", filled(size))
        assert rig.broker.parts.pop is not None
        assert rig.broker.parts.pop.reviver.quarantine.counts == {Reason.ILLEGAL: 1}

    rig(scene, compiled=compiled)
    assert "went to DUEMQ_QUARANTINE: illegal: " in caplog.text


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_copy_may_have_all_bytes_but_those_of_a_handle(
    rig: RunScene, compiled: bool, over: int
) -> None:
    async def scene(rig: PopRig) -> None:
        name_bytes = len(rig.broker.parts.identity.broker_name)
        handle_bytes = entry_bytes("POP_CK", handle_bytes_max(name_bytes))
        room = PROPERTIES_BYTES_MAX - SEPARATOR_BYTES - handle_bytes - POP_BYTES
        store_message(rig.broker, "T", filled(room + over))
        assert await rig.client.pop(invisibleTime=5_000)
        await advance(rig.broker, rig.clock, 6_000)
        assert len(await rig.client.pop()) == 1 - over
        assert len(quarantined(rig.broker)) == over

    rig(scene, compiled=compiled)


@pytest.mark.finding("3D2")
@pytest.mark.parametrize("compiled", [True, False])
def test_a_retry_without_room_for_its_handle_fails_no_other_message(
    rig: RunScene, compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"m")
        assert await rig.client.pop(invisibleTime=5_000)
        await advance(rig.broker, rig.clock, 6_000)
        store_message(rig.broker, "%RETRY%g_T", filled(32_740), b"no room")
        assert bodies(await rig.client.pop(invisibleTime=5_000)) == {b"m"}
        await advance(rig.broker, rig.clock, 6_000)
        assert bodies(await rig.client.pop()) == {b"m"}
        assert [record.properties["DUEMQ_TOPIC"] for record in quarantined(rig.broker)] == [
            "%RETRY%g_T"
        ]

    rig(scene, compiled=compiled)


def test_a_damaged_message_goes_to_quarantine_alone(rig: RunScene) -> None:
    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"m")
        at = store_message(rig.broker, "T", b"", b"damaged body")
        assert len(await rig.client.pop(invisibleTime=5_000)) == 2
        damage(rig.broker.store, at, b"damaged body")
        await advance(rig.broker, rig.clock, 6_000)
        assert bodies(await rig.client.pop()) == {b"m"}
        [record] = quarantined(rig.broker)
        assert record.properties["DUEMQ_REASON"] == "unreadable"
        assert decode_record(memoryview(record.body), 0, check_crc=False).body == b"?amaged body"

    rig(scene)


def test_a_damaged_retry_is_omitted_from_a_pop(rig: RunScene) -> None:
    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"m")
        assert await rig.client.pop(invisibleTime=5_000)
        await advance(rig.broker, rig.clock, 6_000)
        at = store_message(rig.broker, "%RETRY%g_T", b"", b"damaged body")
        damage(rig.broker.store, at, b"damaged body")
        assert bodies(await rig.client.pop(invisibleTime=5_000)) == {b"m"}

    rig(scene)


@pytest.mark.parametrize(
    "properties",
    [b"POP_CK\x01forged\x02a\x01" + b"\xff" * 20_000, b"a\x01" + b"\xff" * 20_000],
    ids=["handle of a producer", "text without UTF-8"],
)
def test_a_text_that_decoding_would_lengthen_is_returned_as_it_is(
    rig: RunScene, properties: bytes
) -> None:
    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"m")
        store_message(rig.broker, "T", properties, b"long")
        assert bodies(await rig.client.pop(invisibleTime=5_000)) == {b"m", b"long"}

    rig(scene)


@pytest.mark.finding("3D1")
def test_a_refused_checkpoint_is_tried_again_later_and_stops_no_other(rig: RunScene) -> None:
    refused = [True]

    async def scene(rig: PopRig) -> None:
        path, inner = rig.broker.parts.put_path, rig.broker.parts.put_path.put

        def put(batch: PutBatch) -> None:
            for row in range(batch.count):
                if refused[0] and batch.body(row) == b"refused":
                    batch.refuse(row, ResponseCode.SYSTEM_ERROR, "a hook refuses it")
            inner(batch)

        await rig.send(0, b"refused", b"m")
        await rig.send(0, b"other", topic="U")
        for topic in "TU":
            assert await rig.client.pop(topic, invisibleTime=5_000)
        path.put = put
        await advance(rig.broker, rig.clock, 10_000)
        assert bodies(await rig.client.pop()) == {b"m"}
        assert bodies(await rig.client.pop("U")) == {b"other"}
        refused[0] = False
        await advance(rig.broker, rig.clock, 61_000, by_ms=5_000)
        assert b"refused" in bodies(await rig.client.pop())
        assert quarantined(rig.broker) == []

    rig(scene)


def test_a_checkpoint_that_failed_has_a_batch_of_its_own(
    rig: RunScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch would have the checkpoints with revive times before and after it, too."""
    monkeypatch.setattr("duemq.pop.pop.REVIVE_QUEUES", 1)  # one queue, one batch
    refused, batches = [True], list[list[bytes]]()

    async def scene(rig: PopRig) -> None:
        path, inner = rig.broker.parts.put_path, rig.broker.parts.put_path.put

        def put(batch: PutBatch) -> None:
            copied = [bytes(batch.body(row)) for row in range(batch.count)]
            batches.append([body for body in copied if body in (b"before", b"refused", b"after")])
            if refused[0] and b"refused" in copied:
                for row in range(batch.count):
                    batch.refuse(row, ResponseCode.SYSTEM_ERROR, "a hook refuses the batch")
            inner(batch)

        for topic, body in (("T", b"refused"), ("U", b"before"), ("V", b"after")):
            await rig.send(0, body, topic=topic)
        path.put = put
        assert await rig.client.pop("T", invisibleTime=5_500)
        await advance(rig.broker, rig.clock, 6_000)
        assert list(filter(None, batches)) == [[b"refused"]]
        batches.clear()
        rig.clock.step(-1_500)
        assert await rig.client.pop("U", invisibleTime=800)
        assert await rig.client.pop("V", invisibleTime=1_200)
        await advance(rig.broker, rig.clock, 1_500, by_ms=1_500)
        assert list(filter(None, batches)) == [[b"before"], [b"refused"], [b"after"]]
        assert bodies(await rig.client.pop("U")) == {b"before"}
        assert bodies(await rig.client.pop("V")) == {b"after"}
        assert await rig.client.pop("T") == []
        refused[0] = False
        await advance(rig.broker, rig.clock, 61_000, by_ms=5_000)
        assert bodies(await rig.client.pop("T")) == {b"refused"}

    rig(scene)


@pytest.mark.parametrize(
    ("error", "reasons"),
    [
        (RequestError(ResponseCode.INVALID_PARAMETER, "the name is too long"), ["illegal"]),
        (RequestError(ResponseCode.SYSTEM_ERROR, "too many topics"), []),
        (OSError("no space"), []),
    ],
)
def test_a_retry_topic_that_cannot_be_created_stops_no_other(
    rig: RunScene, error: Exception, reasons: list[str]
) -> None:
    async def scene(rig: PopRig) -> None:
        topics, inner = rig.broker.parts.topics, rig.broker.parts.topics.ensure

        async def ensure(name: str, **rest: int) -> TopicConfig:
            if name == "%RETRY%g_T":
                raise error
            return await inner(name, **rest)

        topics.ensure = ensure
        await rig.send(0, b"m")
        await rig.send(0, b"other", topic="U")
        for topic in "TU":
            assert await rig.client.pop(topic, invisibleTime=5_000)
        await advance(rig.broker, rig.clock, 6_000)
        assert bodies(await rig.client.pop("U")) == {b"other"}
        found = quarantined(rig.broker)
        assert [record.properties["DUEMQ_REASON"] for record in found] == reasons
        topics.ensure = inner
        await advance(rig.broker, rig.clock, 61_000, by_ms=5_000)
        assert bodies(await rig.client.pop()) == (set() if reasons else {b"m"})

    rig(scene)


FULL, DAMAGED, SOUND = "full", "damaged", "sound"


@pytest.mark.finding("3D1")
@settings(max_examples=8, deadline=None)
@given(
    kinds=st.lists(
        st.tuples(st.sampled_from("TU"), st.sampled_from([FULL, DAMAGED, SOUND])),
        min_size=1,
        max_size=12,
    ),
    compiled=st.booleans(),
)
def test_every_sound_message_is_visible_again_at_its_time(
    kinds: list[tuple[str, str]], compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        sound: set[bytes] = set()
        for topic in "TU":
            await rig.send(0, b"first", topic=topic)
        for number, (topic, kind) in enumerate(kinds):
            body = b"%s %d" % (kind.encode(), number)
            store_message(rig.broker, topic, filled(32_760 if kind == FULL else 9), body)
            sound |= {body} if kind == SOUND else set()
        popped = [m for topic in "TU" for m in await rig.client.pop(topic, invisibleTime=5_000)]
        assert len(popped) == len(kinds) + 2
        for message in popped:
            if message.body.startswith(DAMAGED.encode()):
                damage(rig.broker.store, message.record.phys_offset, message.body)
        await advance(rig.broker, rig.clock, 5_500)
        again = bodies(await rig.client.pop("T")) | bodies(await rig.client.pop("U"))
        assert again == {b"first"} | sound
        assert len(quarantined(rig.broker)) == len(kinds) - len(sound)

    async def main(root: str) -> None:
        clock = FakeClock()
        kernels = None if compiled else Preparation(("ingest",), never)
        keys = small(Path(root), mappedFileSizeCommitLog="1048576")
        async with (
            running(keys, clock=clock, kernels=kernels) as (broker, remote),
            pop_rig(broker, clock, remote, PopClient(remote, clock)) as found,
        ):
            await scene(found)

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))


async def never(kernels: Sequence[KernelEntry], niceness: int) -> None:
    await asyncio.Event().wait()
