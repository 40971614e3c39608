"""Any contents of delayOffset.json: nothing is lost, doubled or early."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duemq_common.clock import FakeClock
from duemq_common.json_dialect import dumps, loads
from tests.support.level_rig import Rig, level_service

FIRST, PENDING, LATER = 12, 9, 5
OLD, OTHER = "old", "other"
NUMBERS = st.one_of(st.integers(-3, 30), st.sampled_from([2**63 - 1, 10**22, -(2**63)]))
TABLES = st.dictionaries(st.sampled_from([1, 2, 3, 99]), NUMBERS, max_size=4)


async def send(rig: Rig) -> None:
    rig.send(1, b"first", count=FIRST)
    await rig.advance(1_000)
    assert await rig.persist()
    shutil.copy(rig.store.config_path("delayOffset.json"), rig.store.config_path(OLD))
    rig.send(3, b"pending", count=PENDING)
    rig.send(1, b"second", count=LATER)
    await rig.advance(1_000)
    rig.send(2, b"late", count=LATER)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of DueMQ with delivered and pending messages in three levels."""
    root = tmp_path_factory.mktemp("base")

    async def steps() -> None:
        async with level_service(root / "store", FakeClock()) as rig:
            await send(rig)
        async with level_service(root / "foreign", FakeClock(3)) as rig:
            rig.send(2, b"x", count=20)
            await rig.advance(5_000)
            await send(rig)

    asyncio.run(steps())
    config = root / "foreign" / "config" / "delayOffset.json"
    shutil.copy(config, root / "store" / "config" / OTHER)
    return root / "store"


async def check(root: Path) -> None:
    """Deliver everything; compare with what was sent."""
    clock = FakeClock()
    clock.advance(2_000)
    ready = {b"first%d" % n for n in range(FIRST)} | {b"second%d" % n for n in range(LATER)}
    late = {b"late%d" % n for n in range(LATER)}
    pending = {b"pending%d" % n for n in range(PENDING)}
    async with level_service(root, clock) as rig:
        await rig.advance(1)
        assert Counter(rig.bodies()) == dict.fromkeys(ready, 1)
        await rig.advance(20_000)
        assert Counter(rig.bodies()) == dict.fromkeys(ready | late | pending, 1)
        for record in rig.records():
            source = rig.store.read_record(-record.prepared_offset - 1)
            assert record.store_ms >= source.store_ms + [1_000, 5_000, 10_000][source.queue_id]


@pytest.mark.finding("3D4")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(table=TABLES, members=st.sampled_from(["own", "offsets", "text keys"]), drop=st.booleans())
def test_any_offsets(
    base: Path,
    tmp_path_factory: pytest.TempPathFactory,
    table: dict[int, int],
    members: str,
    drop: bool,
) -> None:
    root = tmp_path_factory.mktemp("edited") / "store"
    shutil.copytree(base, root)
    path = root / "config" / "delayOffset.json"
    value: dict[str, Any] = loads(path.read_text()) if members == "own" else {}
    value["offsetTable"] = {str(n): at for n, at in table.items()} if "text" in members else table
    path.write_text(dumps(value))
    if drop:
        path.with_name(path.name + ".bak").unlink(missing_ok=True)
    asyncio.run(check(root))


def test_a_table_of_0_1_0(base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has neither a checksum nor a record of its log."""
    root = tmp_path / "store"
    shutil.copytree(base, root)
    path = root / "config" / "delayOffset.json"
    value = loads(path.read_text())
    for name in ("crc32", "lastRecord", "logGeneration"):
        del value[name]
    path.write_text(dumps(value))
    path.with_name(path.name + ".bak").unlink(missing_ok=True)
    asyncio.run(check(root))
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []


@pytest.mark.finding("3D4")
@pytest.mark.parametrize("name", [OLD, OTHER], ids=["an older file", "of another store"])
@pytest.mark.parametrize("backup", [True, False])
def test_a_table_of_another_time_or_store(
    base: Path, tmp_path: Path, name: str, backup: bool
) -> None:
    root = tmp_path / "store"
    shutil.copytree(base, root)
    path = root / "config" / "delayOffset.json"
    shutil.copy(path.with_name(name), path)
    if not backup:
        path.with_name(path.name + ".bak").unlink(missing_ok=True)
    asyncio.run(check(root))
