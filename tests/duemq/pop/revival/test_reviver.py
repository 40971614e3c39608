"""Revival of messages whose topic was deleted and created again."""

from __future__ import annotations

import pytest

from duemq.net.codes import RequestCode
from tests.duemq.pop.conftest import RunScene
from tests.support.pop_client import advance
from tests.support.pop_frames import PopRig


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
