"""Orderly pops whose messages the log has lost, in a power cut or by a truncation."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from duemq.pop.order_info import FILE_NAME, Settled
from duemq.pop.orderly import Orderly
from duemq.pop.pop_offsets import GroupQueue
from duemq_common.clock import FakeClock
from duemq_common.json_dialect import backup_path
from message_store.replication.truncation import truncate_store
from message_store.store import MessageStore
from tests.support.fakes import FakeGroups, FakeTopics
from tests.support.stores import open_store, put_one, small_config

KEPT, CUT, LOST = (GroupQueue(group, "T", 0) for group in ("kept", "cut", "lost"))


def orderly_of(store: MessageStore) -> Orderly:
    return Orderly(store, FakeTopics(), FakeGroups(), MagicMock(), FakeClock())


def pop(orderly: Orderly, queue: GroupQueue, offsets: list[int]) -> None:
    orderly.table.record_pop(queue, offsets, pop_ms=9, invisible_ms=60_000, attempt_id=None)


@pytest.fixture
def log_end(tmp_path: Path) -> int:
    """Write a store with pops of five messages; return the end of the log after the second one."""
    with open_store(tmp_path) as store:
        rows = [put_one(store, "T") for _ in range(5)]
        orderly = orderly_of(store)
        pop(orderly, KEPT, [0, 1])
        pop(orderly, CUT, [1, 2, 3])
        pop(orderly, LOST, [2, 4])
        orderly.table.rewrite()
    return int(rows[2]["phys_offset"])


def pops_of(tmp_path: Path) -> dict[str, list[int]]:
    """Return the queue offsets of each group's last pop after a start."""
    with open_store(tmp_path) as store:
        orderly = orderly_of(store)
        orderly.recover()
        return {queue.group: info.offsets for queue, info in orderly.table.group_queues()}


def test_pops_of_stored_messages_are_kept(tmp_path: Path, log_end: int) -> None:
    assert pops_of(tmp_path) == {"kept": [0, 1], "cut": [1, 2, 3], "lost": [2, 4]}


@pytest.mark.parametrize("grows", [False, True])
def test_truncated_messages_are_removed(tmp_path: Path, log_end: int, *, grows: bool) -> None:
    """Also if the log has other messages at their queue offsets, which a master sent."""
    truncate_store(small_config(tmp_path), FakeClock(), log_end, notice=lambda text: None)
    if grows:
        with open_store(tmp_path) as store:
            for _ in range(5):
                put_one(store, "T")
    assert pops_of(tmp_path) == {"kept": [0, 1], "cut": [1]}
    path = tmp_path / "config" / FILE_NAME
    for written in (path, backup_path(path)):
        assert "lost" not in written.read_text()


def test_pops_after_a_truncation_are_kept(tmp_path: Path, log_end: int) -> None:
    truncate_store(small_config(tmp_path), FakeClock(), log_end, notice=lambda text: None)
    with open_store(tmp_path) as store:
        orderly = orderly_of(store)
        orderly.recover()
        for _ in range(5):
            put_one(store, "T")
        pop(orderly, LOST, [2, 3])
        orderly.table.persist()
    assert pops_of(tmp_path) == {"kept": [0, 1], "cut": [1], "lost": [2, 3]}


def test_messages_after_the_end_of_a_queue_are_removed(tmp_path: Path) -> None:
    """A power cut took them, and the file of the pops remained."""
    with open_store(tmp_path) as store:
        put_one(store, "T")
        put_one(store, "T")
        orderly = orderly_of(store)
        pop(orderly, CUT, [1, 2])
        pop(orderly, LOST, [2, 3])
        orderly.table.persist()
    assert pops_of(tmp_path) == {"cut": [1]}


def test_an_acknowledgement_does_not_move_the_group_past_the_end(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        put_one(store, "T")
        orderly = orderly_of(store)
        pop(orderly, CUT, [0, 1, 2])
        orderly.table.persist()
        orderly = orderly_of(store)
        orderly.recover()
        assert orderly.table.acknowledge(CUT, 1, 9) is Settled.ILLEGAL
        assert orderly.table.acknowledge(CUT, 0, 9) == 1
