"""Schedules that run during failures of masters, and a check of their occurrences."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from duemq.net.client import RemotingClient
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from message_store.config import StoreConfig
from tests.support.schedule_checks import check_each_once, read_occurrences
from tests.support.send_path import send_request

TOPIC: Final = "FailoverSchedules"
QUEUES: Final = 4
EVERY_MS: Final = {"a": 1_000, "b": 1_300, "c": 2_000}
CALL_S_MAX: Final = 5.0
PAUSE_S: Final = 0.1
DRAIN_S_MAX: Final = 120.0
LATE_MS_MAX: Final = 5_000  # on a busy machine, of the last occurrence before the pause


class Schedules:
    """Schedules of one group.

    Attributes:
        began_ms: Time at which all are created, in ms.
        paused_ms: Time of the first request to pause a schedule, in ms, by name.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self.began_ms = 0
        self.paused_ms: dict[str, int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create the schedules by messages; pause them at the end of the block."""
        clock = SystemClock()
        for name, every_ms in EVERY_MS.items():
            properties = {"NAME": name, "EVERY_MS": str(every_ms)}
            text = "".join(
                f"DUEMQ_SCHEDULE_{key}\x01{value}\x02" for key, value in properties.items()
            )
            request = send_request(
                code=10,
                body=name.encode(),
                topic=TOPIC,
                queueId="0",
                defaultTopicQueueNums=str(QUEUES),
                properties=text,
            )
            await self._accepted(request)
        self.began_ms = clock.now_ms()
        yield
        for name in EVERY_MS:
            self.paused_ms[name] = clock.now_ms()
            fields = {"action": "pause", "name": name, "topic": TOPIC}
            await self._accepted(Request(RequestCode.CHANGE_SCHEDULE, fields, version=479))

    async def _accepted(self, request: Request) -> None:
        """Send a request to one member after another until one accepts it."""
        async with asyncio.timeout(DRAIN_S_MAX):
            for address in itertools.cycle(self._addresses):
                try:
                    async with RemotingClient(address) as client:
                        response = await client.call(request, timeout_s=CALL_S_MAX)
                    if response.code == 0:
                        return
                except OSError:
                    pass
                await asyncio.sleep(PAUSE_S)

    def check(self, store: Path, where: str) -> int:
        """Check each planned time of the run in a store; return the number of occurrences."""
        config = StoreConfig(  # as `BROKER_CONF` of the members
            root_text=str(store),
            commitlog_file_bytes=64 << 20,
            index_slots_max=10_000,
            index_entries_max=40_000,
        )
        records = read_occurrences(config, TOPIC, QUEUES)
        planned = check_each_once(records, EVERY_MS, where)
        for name, times in planned.items():
            assert times[0] <= self.began_ms + EVERY_MS[name], where
            assert times[-1] >= self.paused_ms[name] - EVERY_MS[name] - LATE_MS_MAX, where
        return len(records)
