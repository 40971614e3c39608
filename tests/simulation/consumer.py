"""Consumer that survives restarts of the broker, and its comparison with the final log.

The consumer keeps its offsets in memory across kills and power cuts, like a connected client. The
stored offset of its group must never exceed the committed one.
"""

from __future__ import annotations

import asyncio
import random
from itertools import product
from typing import Any

from duemq_common.request import Request
from message_store.log.record import decode_record
from tests.simulation.rig import Rig
from tests.support.loopback_broker import pull_request

GROUP = "live"
TOPICS = ("T", "Other")
QUEUES = (0, 1)
FOUND, NOT_FOUND, UNKNOWN = 0, 19, 22
COMMIT_AND_SUBSCRIPTION = "5"


class Consumer:
    """Member of a consumer group.

    Attributes:
        received: Received bodies in order of the queue offset from 0, by topic and queue.
        committed: Highest committed offset, by topic and queue.
    """

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self._rig, self._chance = rig, chance
        self.received: dict[tuple[str, int], list[bytes]] = {
            place: [] for place in product(TOPICS, QUEUES)
        }
        self.committed = dict.fromkeys(self.received, 0)
        self._saving: asyncio.Task[None] | None = None

    async def consume(self) -> None:
        """Pull once from every queue, and sometimes commit."""
        for place in self.received:
            await self._pull(place, maxMsgNums=self._chance.choice(["1", "4", "32"]))
        if self._chance.random() < 0.5:
            self.save()

    async def _pull(self, place: tuple[str, int], **changes: str) -> bool:
        """Pull once; return whether there was a message."""
        (topic, queue_id), mine = place, self.received[place]
        if self._chance.random() < 0.5:
            changes |= {"sysFlag": COMMIT_AND_SUBSCRIPTION, "commitOffset": str(len(mine))}
            self.committed[place] = len(mine)
        request = pull_request(topic, queue_id, len(mine), consumerGroup=GROUP, **changes)
        response = await self._rig.call(request)
        assert response.code in (FOUND, NOT_FOUND), (place, len(mine), response)
        view = memoryview(bytes(response.body))
        while view:
            record = decode_record(view[: int.from_bytes(view[:4], "big")], 0, check_crc=True)
            assert record.queue_offset == len(mine), (place, len(mine), record.queue_offset)
            mine.append(record.body)
            view = view[record.total_size :]
        assert response.fields is not None
        assert int(response.fields["nextBeginOffset"]) == len(mine), response
        assert int(response.fields["maxOffset"]) >= len(mine), response
        return response.code == FOUND

    def save(self) -> None:
        """Make the broker write consumerOffset.json; the write can block on the disk."""
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._rig.broker.parts.offsets.save())

    async def check_committed(self) -> None:
        """Check that a started broker has only committed offsets of existing messages."""
        if self._saving is not None:
            self._saving.cancel()
        for (topic, queue_id), highest in self.committed.items():
            fields = {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id)}
            response = await self._rig.call(Request(14, fields | {"setZeroIfNotFound": "false"}))
            if response.code == UNKNOWN:
                continue
            assert response.fields is not None
            offset = int(response.fields["offset"])
            _, end = self._rig.broker.store.queue_bounds(topic, queue_id)
            assert offset <= min(highest, end), (topic, queue_id, offset, highest, end)

    async def check_all(self, records: list[Any]) -> None:
        """Check that received and readable messages equal those of the log, in order."""
        for place, mine in self.received.items():
            while await self._pull(place):
                pass
            assert mine == [r.body for r in records if (r.topic, r.queue_id) == place], place
