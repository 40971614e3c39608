"""Adoption of Apache's stores: the state of each timer is found, with any of the files missing.

A fake of Apache 5.3.3 writes its records: timers, rolled copies, delivered copies and markers,
timercheck and timer log. A list contains the pending timers.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from tests.support.stores import add_message
from tests.support.timer_rig import TimerRig
from tests.timer_store.kernels.naive import out_ms_of
from timer_store.checkpoint.snapshot import Check, write_check
from timer_store.layout import TIMED
from timer_store.log.timer_log import TimerLog
from timer_store.log.units import TimerUnits
from timer_store.log.wheel import TimerWheel

P = 1_000
FATES = ["waits", "delivered", "in_hand", "rolled", "rolled_done", "cancelled", "new", "new_done"]
LOST = ["nothing", "timercheck", "timerlog", "timerwheel", "all"]


class FakeApache:
    """The files of a 5.3.3 broker at some time."""

    def __init__(self, rig: TimerRig, now_ms: int) -> None:
        self.rig, self.now_ms = rig, now_ms
        self.slot_ms = now_ms - now_ms % P - 2 * P  # the slot being read
        self.units, self.committed = list[Any](), 0

    def put(self, topic: str, body: bytes, properties: dict[str, str]) -> np.void:
        batch = PutBatch(1, 1)
        add_message(self.rig.store, batch, topic, 0, body, properties=properties)
        batch.rows[0]["born_ms"] = 1_600_000_000_000
        self.rig.store.put(batch)
        return batch.rows[0].copy()

    def timer(self, body: bytes, due_ms: int, **more: str) -> dict[str, str]:
        out_ms = out_ms_of(due_ms, P)
        properties = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"U-{body.decode()}"}
        properties |= {"TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "0"} | more
        row = self.put(TIMER_TOPIC, body, properties)
        self.units.append((row, out_ms))
        return properties

    def deliver(self, body: bytes, properties: dict[str, str]) -> None:
        self.put("T", body, properties | {"TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "2"})

    def write_files(self) -> None:
        root = self.rig.root
        log = TimerLog(root / "timerlog", 2_600)
        log.load()
        log.end = 0
        units = TimerUnits(log, TimerWheel(root / "timerwheel", P))
        for row, out_ms in self.units[: self.committed]:
            timed = np.zeros(1, TIMED)
            timed["phys_offset"], timed["record_size"] = row["phys_offset"], row["record_size"]
            timed["slot_ms"], timed["topic_hash"] = out_ms, 84
            units.add(timed, write_ms=self.slot_ms, read_ms=self.slot_ms - 100 * P)
        units.wheel.write(units.wheel.capture())
        check = Check(self.slot_ms, log.end, self.committed, self.committed)
        units.close()
        write_check(root / "config" / "timercheck", check)


def write_state(apache: FakeApache, state: str, body: bytes, rng: random.Random) -> int | None:
    """Bring a timer into a state; return its due time if it is pending."""
    after_ms = apache.slot_ms + rng.randrange(5_000, 500_000)
    past_ms = apache.slot_ms - rng.randrange(1_000, 50_000)
    if state in ("delivered", "rolled_done"):
        properties = apache.timer(body, past_ms)
        if state == "rolled_done":
            properties = apache.timer(body, past_ms, TIMER_ROLL_TIMES="1")
        apache.deliver(body, properties)
        return None
    if state == "in_hand":
        apache.deliver(body, apache.timer(body, apache.slot_ms + rng.randrange(1, P)))
        return None
    properties = apache.timer(body, after_ms)
    if state == "rolled":
        apache.timer(body, after_ms, TIMER_ROLL_TIMES="1")
        apache.timer(body, after_ms, TIMER_ROLL_TIMES="2")
    if state == "cancelled":
        key = properties["UNIQ_KEY"]
        apache.timer(b"0", after_ms, UNIQ_KEY=key, TIMER_DEL_UNIQKEY=f"T+{key}")
        return None
    return after_ms


@pytest.mark.sampled
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("seed", range(3))
def test_pending_timers_are_found(seed: int, lost: str, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rig = TimerRig(tmp_path, FakeClock()).open()
    rig.timers.reconfigure(TimerRig(tmp_path, rig.clock, stop_enqueue=True).config)
    now_ms = rig.clock.now_ms()
    apache = FakeApache(rig, now_ms)
    waits = {}
    fates = [rng.choice(FATES[:6]) for _ in range(60)]
    for number, state in enumerate([*fates, *(FATES[6:] * 5)]):
        body = b"%d" % number
        if state not in FATES[6:]:
            apache.committed = -1
            due_ms = write_state(apache, state, body, rng)
            if due_ms is not None:
                waits[body] = due_ms
            continue
        if apache.committed < 0:
            apache.committed = len(apache.units)
        properties = apache.timer(body, now_ms + 3_000)
        if state == "new":  # not in the wheel yet
            waits[body] = now_ms + 3_000
        else:  # its delivery is not in the timer log
            apache.deliver(body, properties)
    before = len(rig.delivered())
    rig.kill()
    for path in [*(tmp_path / "timerlog").iterdir(), tmp_path / "timerwheel"]:
        path.unlink()
    for path in (tmp_path / "config").glob("*imer*"):
        path.unlink()
    apache.write_files()
    if lost in ("timercheck", "all"):
        (tmp_path / "config" / "timercheck").unlink()
    if lost in ("timerlog", "all"):
        for path in (tmp_path / "timerlog").iterdir():
            path.unlink()
    if lost in ("timerwheel", "all"):
        (tmp_path / "timerwheel").write_bytes(b"no wheel")
    rig.config = TimerRig(tmp_path).config
    rig.open()
    assert rig.timers.counts.total == len(waits)
    rig.kill()
    rig.open()
    rig.advance(600_000)
    came = {record.body: record.store_ms for record in rig.delivered()[before:]}
    assert came == waits
    assert len(rig.delivered()) == before + len(waits)
    rig.close()
