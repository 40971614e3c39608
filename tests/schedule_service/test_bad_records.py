"""Levels: messages that cannot be read or delivered delay no other message of their level."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq_common.topics import QUARANTINE_TOPIC, SCHEDULE_TOPIC
from message_store.layout import UNIT_AT, UNIT_BYTES
from message_store.log.properties import encode_properties
from tests.support.bad_records import damage
from tests.support.level_rig import level_service

FULL, DAMAGED, DELETED, SOUND = "full", "damaged", "deleted", "sound"
LOST = (DAMAGED, DELETED)
REDIRECT = {"REAL_TOPIC": "T", "REAL_QID": "0"}


def filler(properties: dict[str, str]) -> str:
    """Return a value of `a` with which the redirected record has the maximum properties."""
    return "x" * (32_767 - len(encode_properties({**properties, **REDIRECT, "a": ""})))


@pytest.mark.finding("3D1")
@settings(max_examples=20, deadline=None)
@given(
    kinds=st.lists(
        st.tuples(st.sampled_from([1, 2]), st.sampled_from([FULL, *LOST, SOUND])), max_size=12
    )
)
def test_every_sound_message_is_delivered_at_its_time(kinds: list[tuple[int, str]]) -> None:
    async def scene(root: Path) -> None:
        async with level_service(root, commitlog_file_bytes=1 << 20) as rig:
            start_ms, expected = rig.clock.now_ms(), []
            for number, (level, kind) in enumerate(kinds):
                body = b"%s %d" % (kind.encode(), number)
                properties = {"a": "b"}
                if kind == FULL:
                    properties["a"] = filler({"DELAY": str(level)})
                topic = "Gone" if kind == DELETED else "T"
                row = rig.send(level, body, topic=topic, **properties).rows[0]
                assert row["status"] == 0
                if kind == DAMAGED:
                    damage(rig.store, int(row["phys_offset"]), body)
                if kind not in LOST:
                    expected.append((start_ms + (1_000, 5_000)[level - 1], body))
            for _ in range(10):
                await rig.advance(500)
            found = [(record.store_ms, record.body) for record in rig.records()]
            assert found == sorted(expected, key=lambda message: message[0])
            lost = [kind for _, kind in kinds if kind in LOST]
            assert len(rig.records(QUARANTINE_TOPIC)) == len(lost)
            assert sum(lv.stats.quarantined.total() for lv in rig.service.levels.values()) == len(
                lost
            )

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(scene(Path(root)))


@pytest.mark.parametrize("bit", [0, 9, 12, 30, 41])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_due_time_that_the_disk_has_changed_is_written_again(
    tmp_path: Path, number: int, bit: int
) -> None:
    """Otherwise the message, and those after it, would be delivered early or late."""

    async def scene() -> None:
        due_ms = []
        async with level_service(tmp_path) as rig:
            for at in range(4):
                row = rig.send(2, b"%d" % at).rows[0]
                due_ms.append(int(row["store_ms"]) + 5_000)
                rig.clock.advance(100)
        path = tmp_path / "consumequeue" / SCHEDULE_TOPIC / "1" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[number * UNIT_BYTES + UNIT_AT.tags_code + 7 - bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        async with level_service(tmp_path, rig.clock) as rig:
            for _ in range(80):
                await rig.advance(100)
            found = {int(record.body): record.store_ms for record in rig.records()}
        assert [found[at] for at in range(4)] == due_ms

    asyncio.run(scene())
