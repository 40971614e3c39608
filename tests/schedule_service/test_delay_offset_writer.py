"""Writing of delayOffset.json."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq_common.json_dialect import loads
from schedule_service import delay_offset_writer
from schedule_service.recovery import OFFSETS_FILE
from tests.support.level_rig import level_service


def test_offsets_are_written_by_the_job_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "config" / OFFSETS_FILE

    async def steps() -> None:
        async with level_service(tmp_path, properties={"delayOffsetUpdateVersionStep": "2"}) as rig:
            rig.send(1, count=5)
            assert not path.exists()
            assert await rig.persist()
            assert loads(path.read_text())["offsetTable"] == {1: 0}
            assert loads(path.read_text())["dataVersion"]["counter"] == 0
            await rig.advance(1_000)
            assert await rig.persist()
            data = loads(path.read_text())
            assert data["offsetTable"] == {1: 5}
            assert data["dataVersion"]["counter"] == 2
            assert data["dataVersion"]["timestamp"] == rig.clock.now_ms()
            rig.send(1)
            await rig.advance(1_000)
        assert loads(path.read_text())["offsetTable"] == {1: 6}

    asyncio.run(steps())


def test_nothing_is_written_when_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            written = []
            keeper = rig.plugin.parts.keeper
            monkeypatch.setattr(
                delay_offset_writer, "write_config", lambda path, text: written.append(text)
            )
            for _ in range(3):
                assert await keeper.persist()
            assert len(written) == 1

    asyncio.run(steps())


def test_a_disk_that_refuses_the_file_is_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            keeper = rig.plugin.parts.keeper
            with monkeypatch.context() as full:
                full.setattr(delay_offset_writer, "write_config", no_room)
                assert not await keeper.persist()
            assert await keeper.persist()

    asyncio.run(steps())
    assert "tried again" in caplog.text


def test_entries_outside_of_the_queue_are_derived_from_the_log(tmp_path: Path) -> None:
    path = tmp_path / "config" / OFFSETS_FILE

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1, count=2)
            clock = rig.clock
        path.write_text('{\n\t"offsetTable":{1:99,2:-0,7:5\n\t}\n}')
        async with level_service(tmp_path, clock) as rig:
            assert rig.service.levels[1].cursor.first_undelivered == 0
            assert await rig.persist()
            assert loads(path.read_text())["offsetTable"][1] == 0

    asyncio.run(steps())
