"""Revival of messages whose topic was deleted and created again."""

from __future__ import annotations

import pytest

from duemq.net.codes import RequestCode
from tests.duemq.pop.conftest import RunScene
from tests.support.pop_client import advance
from tests.support.pop_frames import PopRig


@pytest.mark.parametrize("compiled", [True, False])
def test_a_pop_of_a_deleted_topic_revives_no_messages_of_its_successor(
    rig: RunScene, compiled: bool
) -> None:
    async def scene(rig: PopRig) -> None:
        await rig.send(0, b"old 1", b"old 2", b"old 3")
        assert len(await rig.client.pop(invisibleTime=30_000)) == 3
        assert (await rig.remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        await rig.broker.parts.topics.ensure("T", queues=4)
        await rig.send(0, b"new 1", b"new 2")
        found = await rig.client.pop(invisibleTime=30_000)
        assert [message.body for message in found] == [b"new 1", b"new 2"]
        assert (await rig.client.ack(found[0])).code == 0
        await advance(rig.broker, rig.clock, 31_000)
        assert [message.body for message in await rig.client.pop()] == [b"new 2"]
        assert await rig.client.pop() == []

    rig(scene, compiled=compiled)
