"""Timers: records that cannot be read, enqueued or delivered delay no other timer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq_common.topics import QUARANTINE_TOPIC, TIMER_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from tests.support.bad_records import damage
from tests.support.stores import add_message
from tests.support.timer_rig import TimerRig

FULL, DAMAGED, DELETED, NO_TIME, NO_TARGET, SOUND = (
    "full",
    "damaged",
    "deleted",
    "no time",
    "no target",
    "sound",
)
LOST = (DAMAGED, DELETED, NO_TIME, NO_TARGET)
STEP_MS = 1_000


def put_record(rig: TimerRig, kind: str, due_ms: int, body: bytes) -> int:
    """Append a record to the timer queue as another broker does; return its log offset."""
    known = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": str(due_ms)}
    for name in {NO_TIME: ["TIMER_OUT_MS"], NO_TARGET: ["REAL_TOPIC"]}.get(kind, []):
        del known[name]
    if kind == DELETED:
        known["REAL_TOPIC"] = "Gone"
    if kind == FULL:
        known["a"] = "x" * (32_767 - len(encode_properties({**known, "a": ""})))
    batch = PutBatch(1)
    add_message(rig.store, batch, TIMER_TOPIC, 0, body, properties=known)
    rig.store.put(batch)
    assert batch.rows[0]["status"] == 0
    return int(batch.rows[0]["phys_offset"])


@pytest.mark.finding("3D1")
@settings(max_examples=20, deadline=None)
@given(
    kinds=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([FULL, *LOST, SOUND])), max_size=12
    ),
    enqueued=st.booleans(),
)
def test_every_sound_timer_is_delivered_at_its_time(
    kinds: list[tuple[int, str]], enqueued: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        rig = TimerRig(Path(root)).open()
        rig.is_sound = False
        start_ms, expected = rig.clock.now_ms() // STEP_MS * STEP_MS, []
        for number, (delay_s, kind) in enumerate(kinds):
            body, due_ms = b"%s %d" % (kind.encode(), number), start_ms + delay_s * STEP_MS
            at = put_record(rig, kind, due_ms, body)
            if enqueued:
                rig.work()
            if kind == DAMAGED:
                damage(rig.store, at, body)
            if kind not in LOST:
                expected.append((due_ms // STEP_MS, body))
        rig.advance(6 * STEP_MS)
        found = {(record.store_ms // STEP_MS, record.body) for record in rig.delivered()}
        # A time of Apache's timers is that of the slot, which ends a second later.
        assert {body for _, body in found} == {body for _, body in expected}
        assert all((ms + 1, body) in found or (ms, body) in found for ms, body in expected)
        assert len(rig.delivered(QUARANTINE_TOPIC)) == len(kinds) - len(expected)
        rig.kill()
