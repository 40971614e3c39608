"""Level messages on a disk with an unreadable sector."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.page_guard import PAGE_BYTES
from tests.support.bad_disk import BadDisk
from tests.support.level_rig import Rig, level_service

MESSAGES = 40


@pytest.mark.finding("E4")
@pytest.mark.parametrize("again", [False, True], ids=["running", "started again"])
def test_unreadable_messages_are_quarantined_and_others_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    disk = BadDisk(monkeypatch)
    page = 3 * PAGE_BYTES

    async def steps() -> None:
        rows = []
        async with level_service(tmp_path) as rig:
            for number in range(MESSAGES):
                body = b"%04d" % number + b"z" * 900
                rows.append(rig.send(1, body, UNIQ_KEY=f"U{number}").rows[0].copy())
            path = rig.store.log.files[0].path
            if not again:
                disk.break_page(path, page)
                await rig.advance(1_000)
                check(rig, rows)
        if again:
            disk.break_page(path, page)
            async with level_service(tmp_path) as rig:
                await rig.advance(2_000)
                check(rig, rows)

    def check(rig: Rig, rows: list[np.void]) -> None:
        hit = [
            bool(row["phys_offset"] < page + PAGE_BYTES)
            and bool(row["phys_offset"] + row["record_size"] > page)
            for row in rows
        ]
        assert [body[:4] for body in rig.bodies()] == [
            b"%04d" % number for number in range(MESSAGES) if not hit[number]
        ]
        kept = rig.records(QUARANTINE_TOPIC)
        assert [record.prepared_offset for record in kept] == [
            -(int(row["phys_offset"]) + 1) for row, is_hit in zip(rows, hit, strict=True) if is_hit
        ]
        for record in kept:
            assert record.properties["DUEMQ_REASON"] == "unreadable"
            assert "Input/output error" in record.properties["DUEMQ_DETAIL"]

    asyncio.run(steps())


@pytest.mark.extended
@pytest.mark.finding("E7")
def test_a_temporary_error_quarantines_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BadDisk(monkeypatch)

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            for number in range(MESSAGES):
                rig.send(1, b"%04d" % number + b"z" * 900)
            for page in range(9):
                disk.break_page(rig.store.log.files[0].path, page * PAGE_BYTES, passing=True)
            await rig.advance(1_000)
            assert [body[:4] for body in rig.bodies()] == [b"%04d" % n for n in range(MESSAGES)]
            assert rig.records(QUARANTINE_TOPIC) == []

    asyncio.run(steps())
