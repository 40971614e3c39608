"""What a start has to read of the commit log to know which timers are settled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.store_help import open_store, put_one
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
