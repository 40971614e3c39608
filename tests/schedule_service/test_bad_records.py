"""Levels: messages that cannot be read or delivered delay no other message of their level."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.quarantine import QUARANTINE_TOPIC
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
