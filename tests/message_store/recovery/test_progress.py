"""Progress of the queues: what the recovery mark claims to be on the disk."""

from __future__ import annotations

from pathlib import Path

from message_store.recovery.checkpoint import Marks
from tests.support.stores import open_store, put_one


def test_queues_that_are_ahead_of_the_synced_log_are_not_marked_as_durable(tmp_path: Path) -> None:
    with open_store(tmp_path, flush_commitlog_interval_ms=100_000_000) as store:
        synced = store.flusher.durable

        def sync_queues() -> Marks:
            put_one(store, "T")
            store.progress.mark_dispatched()
            store.progress.sync_queues(store.flusher, 0)
            marks = store.mark.read()
            assert marks is not None
            return marks

        for _ in range(3):  # each call also considers the mark of the one before
            marks = sync_queues()
            assert marks.dispatched == store.max_offset
            assert marks.durable <= synced
        store.flusher.flush()
        assert sync_queues().durable == store.flusher.durable
