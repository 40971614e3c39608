"""Path of a message through a running broker: the files in docs/ARCHITECTURE.md, no others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.net import codec
from duemq_common.clock import FakeClock
from message_store.kernels import registry
from message_store.log.page_guard import page_guard
from message_store.log.properties import encode_properties
from message_store.log.record import decode_record
from tests.support.loopback_broker import pull_request
from tests.support.path_trace import TOP, PathTrace
from tests.support.raw_connection import RawPeer
from tests.support.running_broker import running, small
from tests.support.send_path import send_request

FILES_MAX = {"level": 39, "timer": 45}
"""Maximum number of files, by kind."""
BACKGROUND = frozenset(
    {
        "MigrationPlugin._guard",
        "HaServer._update_periodically",
        "Orderly.run",
        "TimerStore._preload",
        "preload",
    }
)
"""Tasks that wake up at intervals, after the start, or once at the first timer."""
PAGE_GUARD = "message_store/log/page_guard.py"
"""Reads pass this file too once a page was unreadable, as in an earlier test of this process."""
THREAD = "MainThread"
KERNELS = "send", "ingest", "broker", "levels", "timers"
DELAY_MS = 1_500
LEVEL, TIMER = "level", "timer"


def documented(title: str) -> set[str]:
    """Return the files that a section of the architecture names."""
    text = (TOP / "docs" / "ARCHITECTURE.md").read_text()
    section = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    assert section is not None, title
    return set(re.findall(r"`([\w/]+\.py)`", section[1]))


@pytest.fixture(scope="module")
def trace() -> Iterator[PathTrace]:
    found = PathTrace()
    with found.installed():
        yield found


class Client:
    """Producer and consumer of queue 0 of a topic, on two connections."""

    def __init__(self, broker: Broker, clock: FakeClock, sends: RawPeer, pulls: RawPeer) -> None:
        self._broker, self._clock, self._sends, self._pulls = broker, clock, sends, pulls
        self._offset = 0

    async def send_and_pull(self, kind: str, trace: PathTrace) -> bytes:
        """Send a message, let it become due, and return its body as the consumer receives it."""
        delay = (
            {"DELAY": "1"}
            if kind == LEVEL
            else {"TIMER_DELIVER_MS": str(self._clock.now_ms() + DELAY_MS)}
        )
        properties = encode_properties({"UNIQ_KEY": f"{kind}{self._offset}", **delay}).decode()
        body = f"{kind} {self._offset}".encode()
        request = send_request(code=310, topic="T", queueId="0", properties=properties, body=body)
        fields = {"sysFlag": "6", "suspendTimeoutMillis": "60000"}
        self._pulls.send(pull_request("T", 0, self._offset, **fields))
        polls, store = self._broker.parts.long_polls, self._broker.store
        while not len(polls) or store.read_ahead.wake_at <= store.max_offset:  # noqa: ASYNC110
            await asyncio.sleep(0)  # until the pull is held, and the append wakes no thread
        data = codec.encode_request(request)
        with trace.recording():
            self._sends.writer.write(data)
            await self._sends.read_frame()
            self._clock.advance(DELAY_MS)
            response = await self._pulls.read_frame()
        frame = codec.next_frame(memoryview(response), 0, len(response))
        assert frame is not None
        command = codec.decode_frame(memoryview(response), frame)
        assert isinstance(command, codec.ReceivedResponse)
        self._offset += 1
        return decode_record(memoryview(command.response.body), 0).body


@asynccontextmanager
async def client_of(root: Path) -> AsyncIterator[Client]:
    """Run a broker with all plugins on a clock that stands still, and connect to it."""
    registry.load(*KERNELS)  # a peer does not wait for their compilation
    clock = FakeClock()
    properties = small(root, messageDelayLevel="1s")
    async with running(properties, clock=clock) as (broker, _):
        await broker.parts.topics.ensure("T", queues=1)
        broker.scheduler.pause()
        async with (
            await RawPeer.connect(broker.port) as sends,
            await RawPeer.connect(broker.port) as pulls,
        ):
            yield Client(broker, clock, sends, pulls)


async def traced(root: Path, kind: str, trace: PathTrace) -> set[str]:
    """Return the files through which the second message of a kind passes."""
    async with client_of(root) as client:
        for number in range(2):  # the first one loads kernels and opens files
            assert await client.send_and_pull(kind, trace) == f"{kind} {number}".encode()
        return trace.files(THREAD, without=BACKGROUND)


@pytest.mark.parametrize("kind", [LEVEL, TIMER])
def test_a_message_passes_the_files_of_the_architecture(
    kind: str, trace: PathTrace, tmp_path: Path
) -> None:
    files = asyncio.run(traced(tmp_path, kind, trace))
    if page_guard().replaced[0]:
        files.discard(PAGE_GUARD)
    expected = documented("Every message") | documented(f"A {kind} message")
    assert files == expected
    assert len(files) <= FILES_MAX[kind]
