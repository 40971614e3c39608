"""Records of one append: the store refuses single records, or all records put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duemq.pop.checkpoints import Acknowledgement, PopCheckpoint
from duemq.pop.figures import PopFigures
from duemq.pop.revive_log import ReviveLog
from duemq.pop.undecided_pops import UndecidedPops
from duemq_common.errors import RequestError
from tests.support.pop_frames import PopRig

TOO_LATE_MS = 10**15


@pytest.fixture
def log(rig: Callable[..., Any]) -> Callable[..., Any]:
    """Run a scene with a broker's revive log and its appends."""

    def run(scene: Callable[..., Any]) -> None:
        async def with_log(rig: PopRig) -> None:
            parts = rig.broker.parts
            store, figures = rig.broker.store, PopFigures(0)
            undecided = UndecidedPops(store)
            put_path, identity = parts.put_path, parts.identity
            log = ReviveLog(store, put_path, undecided, identity, rig.clock, figures)
            scene(rig, log)
            await asyncio.sleep(0)

        rig(with_log)

    return run


def checkpoint(rig: PopRig, invisible_ms: int = 60_000) -> tuple[int, PopCheckpoint]:
    now_ms = rig.clock.now_ms()
    return 0, PopCheckpoint("T", "g", 0, 0, now_ms, invisible_ms, (0,), "test")


def acknowledgement(rig: PopRig, in_ms: int = 60_000) -> tuple[int, Acknowledgement]:
    now_ms = rig.clock.now_ms()
    return 0, Acknowledgement("T", "g", 0, 0, now_ms, (0,), "test", now_ms + in_ms)


def test_valid_records_are_one_append(log: Callable[..., Any]) -> None:
    def scene(rig: PopRig, log: ReviveLog) -> None:
        entries = [acknowledgement(rig), checkpoint(rig), checkpoint(rig)]
        assert log.put_each(entries, together=(1, 2)) == {}
        assert rig.appends.batches == [["ack", "ck", "ck"]]
        assert log.put_each([], together=(0, 0)) == {}

    log(scene)


def test_errors_are_reported_by_index(log: Callable[..., Any]) -> None:
    def scene(rig: PopRig, log: ReviveLog) -> None:
        entries = [acknowledgement(rig), acknowledgement(rig, TOO_LATE_MS), acknowledgement(rig)]
        refused = log.put_each(entries, together=(3, 0))
        assert {index: error.code for index, error in refused.items()} == {1: 29}
        assert rig.appends.batches, "the others are stored"

    log(scene)


def test_records_put_together_are_refused_together(log: Callable[..., Any]) -> None:
    def scene(rig: PopRig, log: ReviveLog) -> None:
        entries = [acknowledgement(rig), checkpoint(rig), checkpoint(rig, TOO_LATE_MS)]
        before = rig.broker.store.max_offset
        assert set(log.put_each(entries[1:], together=(0, 2))) == {0, 1}
        with pytest.raises(RequestError):
            log.put(entries)
        assert rig.broker.store.max_offset == before
        assert set(log.put_each(entries, together=(1, 2))) == {1, 2}
        assert rig.broker.store.max_offset > before

    log(scene)


def test_a_failed_append_refuses_all_records(log: Callable[..., Any]) -> None:
    def scene(rig: PopRig, log: ReviveLog) -> None:
        rig.appends.fault = "disk full"
        refused = log.put_each([acknowledgement(rig), checkpoint(rig)], together=(1, 1))
        assert {index: error.code for index, error in refused.items()} == {0: 1, 1: 1}
        assert all("disk full" in error.remark for error in refused.values())

    log(scene)
