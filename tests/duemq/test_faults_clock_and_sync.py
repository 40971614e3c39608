"""A disk that cannot sync, and a clock that is stepped under a running broker."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
import uvloop

from duemq_common.clock import FakeClock
from message_store.log.commit_log import LogFile
from tests.duemq.test_faults_disk import level_properties, rest
from tests.support.loopback_broker import (
    bodies_of,
    call,
    compile_kernels,
    faults_of,
    loopback,
    pull_request,
    records_of,
    send,
)
from tests.support.raw_connection import RawPeer

START_MS = 1_700_000_000_000


def run(main: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def test_a_disk_that_cannot_sync_refuses_writes_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync the contents of the disk are unknown: no success is promised any more."""

    def fail(file: LogFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def broken() -> None:
        changes = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "60000"}
        async with loopback(tmp_path, **changes) as broker:
            await compile_kernels(broker)
            async with await RawPeer.connect(broker.port) as peer:
                assert (await send(peer, b"synced", opaque=1)).code == 0
                monkeypatch.setattr(LogFile, "sync", fail)
                assert (await send(peer, b"written", opaque=2)).code == 10  # FLUSH_DISK_TIMEOUT
                refused = await send(peer, b"refused", opaque=3)
                assert refused.code == 14
                assert "cannot be synced" in (refused.remark or "")
                broker.store.check_disk()
                assert (await send(peer, b"refused", opaque=4)).code == 14
                assert (await call(peer, pull_request("T", 1, 0))).code == 0

    async def repaired() -> None:
        async with loopback(tmp_path) as broker:
            assert bodies_of(broker) == [b"synced", b"written"]
            async with await RawPeer.connect(broker.port) as peer:
                assert (await send(peer, b"again", opaque=1)).code == 0

    run(broken())
    assert (tmp_path / "abort").exists()
    monkeypatch.undo()
    run(repaired())
    assert faults_of(tmp_path) == []


STEPS = {
    "back by a little, then on": [-500, 500, 400, 600],
    "back by a minute, then on": [-60_000, 30_000, 30_000, 999, 1],
    "back by a day, then on": [-86_400_000, 86_400_000, 1_000],
    "back and forth": [300, -300, 900, -600, 500, -499, 699, 1_000],
    "ahead by a day, back, on": [86_400_000, -86_400_000, 1_000, 1_000],
    "ahead, sends, back": [5_000, -5_000, 10_000],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_a_stepped_clock_never_makes_a_message_early_or_double(
    tmp_path: Path, steps: list[int]
) -> None:
    clock = FakeClock(START_MS)
    promised: dict[bytes, int] = {}

    async def main() -> None:
        async with loopback(tmp_path, clock=clock) as broker:
            await compile_kernels(broker)
            async with await RawPeer.connect(broker.port) as peer:
                for number, step_ms in enumerate([*steps, 0]):
                    for level, delay_ms in ((1, 1_000), (2, 5_000)):
                        body = b"%d of %d" % (number, level)
                        text = level_properties(level)
                        assert (await send(peer, body, opaque=1, properties=text)).code == 0
                        promised[body] = clock.now_ms() + delay_ms
                    clock.advance(step_ms)
                    await rest(broker)
                    check(records_of(broker, "T", 1), clock.now_ms())
                clock.set_ms(max(promised.values()) + 1_000)
                await rest(broker)
                arrived = bodies_of(broker)
                assert sorted(arrived) == sorted(promised)

    def check(records: list[Any], now_ms: int) -> None:
        arrived = [record.body for record in records]
        assert len(arrived) == len(set(arrived))
        for record in records:
            assert record.store_ms >= promised[record.body]
        for body, due_ms in promised.items():
            assert body in arrived or now_ms < due_ms + 1_000

    run(main())
    assert [fault for fault in faults_of(tmp_path) if fault.kind != "item-time"] == []
