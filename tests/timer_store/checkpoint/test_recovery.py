"""What a start has to read of the commit log to know which timers are settled."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.stores import open_store, put_one
from tests.support.timer_rig import TimerRig
from timer_store.config import TimerConfig
from timer_store.names import SCHEDULE_TOPIC, TIMER_TOPIC
from timer_store.store import TimerStore

DUE = {"TIMER_OUT_MS": "9000000000000", "REAL_TOPIC": "T", "REAL_QID": "0"}


@pytest.mark.parametrize(
    ("topic", "properties", "is_read"),
    [(SCHEDULE_TOPIC, {"DELAY": "1"}, False), (TIMER_TOPIC, DUE, True)],
    ids=["without timers", "with one"],
)
def test_a_log_without_timers_is_not_read_through(
    topic: str,
    properties: dict[str, str],
    is_read: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_store(tmp_path) as store:
        put_one(store, topic, properties=properties)
        scan, scanned = store.scan, []

        def counted(*span: int) -> Any:
            scanned.append(span)
            return scan(*span)

        monkeypatch.setattr(store, "scan", counted)
        timers = TimerStore(store, store.clock, TimerConfig())
        timers.open()
        assert bool(scanned) is is_read
        timers.close()


def test_what_is_settled_is_not_gone_through_for_each_piece(tmp_path: Path) -> None:
    """A start that takes the queue in anew skips what is settled: pieces times all would be slow.

    Seen with 1 M moved messages in 1 GB of log: four minutes.
    """
    rig = TimerRig(tmp_path).open()
    now_ms = rig.clock.now_ms()
    rig.put_many([(now_ms + 60_000, "T", 0, b"x") for _ in range(1_000)])
    intake, times = rig.timers.enqueue, []
    for settled in (100, 5_000_000):
        intake.skip = (1 << 40) + np.arange(settled)
        rig.timers.position.queue_offset = 0
        begin = time.perf_counter()
        while intake.catch_up(50, now_ms):
            pass
        times.append(time.perf_counter() - begin)
        assert not intake.behind
    assert times[1] < 20 * times[0], "50,000 times as many"
    rig.kill()
