"""The walk over old files of the timer log, which returns their pending messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.timer_rig import TimerRig
from timer_store.layout import UNIT_BYTES
from timer_store.log.timer_log import UnitFile
from timer_store.log.unit_walk import UnitWalk

FAR_MS = 50_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_window_slots=100).open()
    yield rig
    rig.close()


def put(rig: TimerRig, count: int, delay_ms: int) -> list[int]:
    """Return the log offsets of new timers."""
    due_ms = rig.clock.now_ms() + delay_ms
    batch = rig.put_many([(due_ms + n, "T", 0, b"x") for n in range(count)])
    return [int(row["phys_offset"]) for row in batch.filled]


def walked(rig: TimerRig, until: int = 1 << 60) -> list[int]:
    walk, found = UnitWalk(rig.timers.state, until), []
    while walk.left:
        found += walk.piece()["phys_offset"].tolist()
    done, whole = walk.progress
    assert done == whole
    return found


def test_pending_messages_before_an_offset(rig: TimerRig) -> None:
    far = put(rig, 120, FAR_MS)
    assert len(rig.timers.units.log.files) == 3
    assert walked(rig) == far
    assert walked(rig, far[70]) == far[:70]
    assert walked(rig, 0) == []


def test_staged_settled_and_rolled_units_are_omitted(rig: TimerRig) -> None:
    near, far = put(rig, 30, 300), put(rig, 30, FAR_MS)
    rolls = put(rig, 30, 150_000)  # all but the last few roll after 50 s
    rig.advance(100)
    assert walked(rig) == far + rolls, "the near ones are loaded"
    rig.timers.decisions.cancel(np.array(far[:10], np.int64))
    rig.persist()
    assert walked(rig) == far[10:] + rolls
    rig.advance(80_000)
    assert sorted(walked(rig)) == rolls, "each once, where it is now"
    assert len(rig.bodies()) == len(near) + len(far) - 10


def test_damaged_units_are_skipped(rig: TimerRig) -> None:
    far = put(rig, 60, FAR_MS)
    file = rig.timers.units.log.files[0]
    file.write(3 * UNIT_BYTES, bytes(UNIT_BYTES))
    rig.is_sound = False
    assert walked(rig) == far[:3] + far[4:]
    file.write(3 * UNIT_BYTES, file.data[2 * UNIT_BYTES : 3 * UNIT_BYTES].tobytes())


def test_a_rebuilt_log_ends_the_walk(rig: TimerRig) -> None:
    put(rig, 60, FAR_MS)
    walk = UnitWalk(rig.timers.state, 1 << 60)
    walk.piece()
    rig.timers.state.rebuilds += 1
    assert not walk.left
    assert not walk.valid
    assert walk.piece().size == 0


def test_memory_of_finished_files_is_released(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(rig, 120, FAR_MS)
    released = []
    monkeypatch.setattr(UnitFile, "release", lambda self: released.append(self.base))
    walked(rig)
    assert released == [file.base for file in rig.timers.units.log.files]
