"""Compaction on request: responses, dry runs and illegal requests."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from delayed_delivery.steps import at_once
from duemq_common.codes import RequestCode
from duemq_common.errors import RequestError
from duemq_common.request import Request
from tests.support.full_timer_disk import DAY_MS, FILE_BYTES, FullDisk, PinningRig
from timer_store.collector import StoreCollector
from timer_store.compaction.request import NOTHING_EXPIRED, NOTHING_NEEDED, handle_compact
from timer_store.views import summary


def call(rig: PinningRig, body: bytes = b"") -> dict[str, Any]:
    request = Request(RequestCode.COMPACT_TIMERS, {}, body)
    found: dict[str, Any] = json.loads(asyncio.run(handle_compact(rig.timers, request)).body)
    return found


def age(rig: PinningRig) -> None:
    for file in rig.store.log.files[:-1]:
        os.utime(file.path, (0, 0))


def put_one(rig: PinningRig) -> int:
    """Put a timer in the first file; return the size of its record."""
    batch = rig.put(rig.clock.now_ms() + DAY_MS)
    rig.fill(3)
    return int(batch.rows[0]["record_size"])


def test_a_dry_run_reports_what_a_run_then_does(rig: PinningRig) -> None:
    size = put_one(rig)
    assert call(rig)["why"] == NOTHING_EXPIRED
    age(rig)
    end = rig.store.log.files[-1].base
    gain = {"messages": 1, "bytes": size, "frees": end, "until": end}
    rest = {"running": False, "blocked_by": "", "why": ""}
    assert call(rig, b'{"dry_run": true}') == gain | rest | {"dry_run": True, "started": False}
    assert not rig.timers.compaction.running
    assert call(rig) == gain | rest | {"dry_run": False, "started": True}
    again = call(rig)
    assert (again["running"], again["started"]) == (True, False)
    rig.advance(1_000)
    assert call(rig)["why"] == NOTHING_NEEDED
    rig.persist()
    assert rig.clean() == end // FILE_BYTES >= 2


def test_missing_room_is_reported(rig: PinningRig, disk: FullDisk) -> None:
    put_one(rig)
    age(rig)
    disk.percent = 89.999
    found = call(rig)
    assert (found["started"], found["blocked_by"]) == (False, "no_room")
    assert "free space" in found["why"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"dry": true}', b'{"dry_run": 1}'])
def test_illegal_requests_are_refused(rig: PinningRig, body: bytes) -> None:
    with pytest.raises(RequestError):
        call(rig, body)


def test_metrics_and_summary_contain_the_compaction(rig: PinningRig, disk: FullDisk) -> None:
    size = put_one(rig)
    registry = CollectorRegistry()
    registry.register(StoreCollector(rig.timers))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"duemq_timer_{name}", labels)

    disk.percent = 89.999
    rig.compact()
    assert value("compaction_blocked", why="no_room") == 1
    assert value("compaction_blocked", why="too_full") == 0
    assert at_once(summary(rig.timers))["compaction"]["blocked_by"] == "no_room"
    rig.clock.advance(60_001)
    disk.percent = 86
    rig.compact()
    assert value("compaction_blocked", why="no_room") == 0
    assert value("copied_total") == 1
    assert value("copied_bytes_total") == size
    assert value("freed_bytes_total") >= FILE_BYTES
    reported = at_once(summary(rig.timers))["compaction"]
    assert (reported["copied"], reported["running"], reported["why"]) == (1, False, "")
