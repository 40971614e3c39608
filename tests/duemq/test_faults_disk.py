"""A disk that is full for real: a small one in memory, filled up. Where none may be mounted, the
writes of the broker are refused instead."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from duemq.broker.broker import Broker
from duemq.broker.jobs import OFFSETS_JOB
from duemq_common import json_dialect
from duemq_common.clock import FakeClock
from duemq_common.errors import ConfigError, StoreFull
from duemq_common.request import Request
from tests.support.loopback_broker import (
    bodies_of,
    call,
    compile_kernels,
    faults_of,
    loopback,
    pull_request,
    send,
)
from tests.support.raw_connection import RawPeer
from tests.support.replica_rig import until
from tests.support.running_broker import running, small

DISK_BYTES = 24 << 20
PIECE_BYTES = 1 << 16
COUNT = 30
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


class RealDisk:
    """A file system of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (PIECE_BYTES, 4_096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._ballast.unlink()


class RefusingDisk:
    """Refuses writes of log and tables."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self._patch = root, patch

    def fill(self) -> None:
        def refuse(*args: Any) -> int:
            raise NO_ROOM

        self._patch.setattr(os, "pwritev", refuse)
        self._patch.setattr(json_dialect, "write_config", refuse)

    def free(self) -> None:
        self._patch.undo()


Disk = RealDisk | RefusingDisk


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(root)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        yield RefusingDisk(root, monkeypatch)
        return
    try:
        yield RealDisk(root)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


async def rest(broker: Broker) -> None:
    """Let the level service do what it can."""
    service = broker.plugins.plugins["schedule_service"].parts.service  # type: ignore[attr-defined]
    for _ in range(10):
        await asyncio.sleep(0)
    await until(lambda: service.is_idle)


def level_properties(level: int) -> str:
    return f"DELAY\x01{level}\x02"


async def fill_by_sending(disk: Disk, peer: RawPeer) -> int:
    """Fill the disk; send until the page in hand is full too; return how many were taken."""
    disk.fill()
    taken = 0
    while True:
        response = await send(peer, b"x" * 1_000, opaque=taken, topic="Other")
        if response.code:
            assert response.code == 14
            assert "full" in (response.remark or "")
            return taken
        taken += 1


def test_a_full_disk_refuses_sends_and_keeps_deliveries(disk: Disk) -> None:
    clock = FakeClock()
    root = disk.root / "store"

    async def main() -> None:
        async with loopback(root, clock=clock) as broker:
            await compile_kernels(broker)
            async with await RawPeer.connect(broker.port) as peer:
                for number in range(COUNT):
                    body = b"%d" % number
                    late = await send(peer, body, opaque=1, properties=level_properties(2))
                    assert late.code == 0
                assert (await send(peer, b"there", opaque=1)).code == 0
                taken = await fill_by_sending(disk, peer)
                clock.advance(5_000)
                await rest(broker)
                assert bodies_of(broker) == [b"there"]
                pulled = await call(peer, pull_request("T", 1, 0))
                assert pulled.code == 0
                delayed = await send(peer, b"no", opaque=2, properties=level_properties(1))
                assert delayed.code == 14
                # Tables cannot be written: nothing dies of it.
                plugin: Any = broker.plugins.plugins["schedule_service"]
                assert await plugin.parts.keeper.persist() in (True, False)
                response = await call(peer, Request(215, {"topic": "Nowhere"}, opaque=3))
                assert response.code in (0, 1, 14)
                heartbeat = b'{"clientID":"c","producerDataSet":[{"groupName":"p"}]}'
                assert (await call(peer, Request(34, {}, heartbeat, opaque=4))).code == 0
                clock.advance(100_000)
                await rest(broker)
                disk.free()
                broker.store.check_disk()
                assert broker.store.writable
                clock.advance(100_000)
                await rest(broker)
                assert bodies_of(broker) == [b"there", *(b"%d" % n for n in range(COUNT))]
                assert (await send(peer, b"again", opaque=5)).code == 0
                assert bodies_of(broker)[-1] == b"again"
                assert len(bodies_of(broker, "Other")) == taken

    run(main())
    assert faults_of(root) == []


def test_a_start_on_a_full_disk_reports_the_action_and_loses_nothing(disk: Disk) -> None:
    clock = FakeClock()
    root = disk.root / "store"

    async def before() -> int:
        async with loopback(root, clock=clock) as broker:
            await compile_kernels(broker)
            async with await RawPeer.connect(broker.port) as peer:
                for number in range(COUNT):
                    body = b"%d" % number
                    await send(peer, body, opaque=1, properties=level_properties(2))
                await send(peer, b"there", opaque=1)
                return await fill_by_sending(disk, peer)

    async def start() -> None:
        async with loopback(root, clock=clock):
            pass

    async def after(taken: int) -> None:
        async with loopback(root, clock=clock) as broker:
            clock.advance(5_000)
            await rest(broker)
            assert bodies_of(broker) == [b"there", *(b"%d" % n for n in range(COUNT))]
            assert len(bodies_of(broker, "Other")) == taken

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        taken = runner.run(before())
        if isinstance(disk, RealDisk):
            with pytest.raises((StoreFull, ConfigError), match=r"free disk space|No space left"):
                runner.run(start())
        disk.free()
        runner.run(after(taken))
    assert faults_of(root) == []


def test_periodic_writes_to_a_full_disk_are_reported_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _):
            broker.parts.offsets.commit("g", "orders", 0, 1)
            write = broker.scheduler.get_job(OFFSETS_JOB).func
            with monkeypatch.context() as patch:
                patch.setattr(json_dialect, "_replace_config", full)
                await write()
            path = broker.store.config_path("consumerOffset.json")
            assert "consumer offsets cannot be written; it is tried again" in caplog.text
            assert f"No space left on device: '{path}'" in caplog.text
            await write()
            assert path.exists()

    asyncio.run(main())
