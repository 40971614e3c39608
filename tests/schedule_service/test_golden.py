"""Stores written by Apache: the pending messages, and only they, are delivered on time."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from duemq_common.clock import FakeClock
from duemq_common.json_dialect import loads
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import CQ_UNIT
from tests.support.level_rig import Rig, level_service

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
STORES = ["apache-4.9.7-clean", "apache-4.9.7-running", "apache-5.3.3-clean", "apache-5.3.3-killed"]
DELAYS = parse_levels(DEFAULT_LEVELS)


def unpack(name: str, root: Path) -> Path:
    with tarfile.open(GOLDEN / "stores" / f"{name}.tar.gz") as archive:
        archive.extractall(root, filter="data")
    (found,) = [path.parent for path in root.rglob("commitlog")]
    return found


def manifest(name: str) -> list[dict[str, Any]]:
    release = name.rsplit("-", 1)[0]
    lines = (GOLDEN / "manifests" / f"{release}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def make_early(root: Path, now_ms: int) -> int:
    """Flip one bit in the due times of two pending units of each level; return their number.

    The units are the first and the last one of their level that are not due at `now_ms`.
    """
    count = 0
    for path in sorted((root / "consumequeue" / SCHEDULE_TOPIC).glob("*/*")):
        units = np.fromfile(path, CQ_UNIT)
        pending = np.flatnonzero((units["size"] > 0) & (units["tags_code"] > now_ms))
        for at in {*pending[:1].tolist(), *pending[-1:].tolist()}:
            units["tags_code"][at] ^= 1 << 40  # set in each time of this century
            count += 1
        units.tofile(path)
    return count


@pytest.mark.sampled
@pytest.mark.parametrize("changed", ["", pytest.param("early", id="a bit of due times is changed")])
@pytest.mark.parametrize("name", STORES)
def test_pending_messages_are_delivered_on_time(name: str, changed: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    rows = manifest(name)
    clock = FakeClock(next(row["at"] for row in rows if row["kind"] == "end"))
    if changed:
        assert make_early(root, clock.now_ms()) > 3
    sent = {row["msgId"]: row for row in rows if row["kind"] == "sent" and row["level"] > 0}
    received = {row["msgId"] for row in rows if row["kind"] == "received"}
    waiting = {key: row for key, row in sent.items() if key not in received}
    assert len(waiting) > 40

    async def steps() -> None:
        topics = tuple(sorted({row["topic"] for row in sent.values()}))
        properties = {"messageDelayLevel": DEFAULT_LEVELS}
        async with level_service(root, clock, properties, topics=topics) as rig:
            before = {r.phys_offset for queue in range(8) for r in rig.records(topics[0], queue)}
            pending = rig.plugin.admin_views()["levels"]()["pending"]
            assert pending >= len(waiting)
            while (due_ms := next_due_ms(rig)) is not None:
                await rig.advance(max(due_ms - clock.now_ms(), 0))
            found = [r for queue in range(8) for r in rig.records(topics[0], queue)]
            new = [r for r in found if r.phys_offset not in before]
            assert len(new) == pending
            keys = [r.properties["UNIQ_KEY"] for r in new]
            assert len(set(keys)) == len(keys)
            assert set(keys) >= set(waiting)
            for record in new:
                origin = rig.store.read_record(-record.prepared_offset - 1)
                level = origin.queue_id + 1
                assert record.store_ms == max(origin.store_ms + DELAYS[level], clock_start)
                assert record.body == origin.body
                assert record.store_host == origin.store_host
                assert record.properties == origin.properties
            rig_offsets = loads(rig.plugin.parts.keeper.text())["offsetTable"]
            assert rig_offsets[18] > 3

    clock_start = clock.now_ms()
    asyncio.run(steps())


def next_due_ms(rig: Rig) -> int | None:
    times = [rig.service.next_due_ms(level) for level in rig.service.levels.values()]
    return min((time for time in times if time is not None), default=None)
