"""The table journal's queues in a real store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.registry.journal_log import StoreLog
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.topics import TABLES_TOPIC
from message_store.log.batch import PutBatch
from message_store.replication.acknowledgement import Missing
from message_store.store import MessageStore
from tests.support.stores import add_message, open_store


def test_records_are_read_back_and_refusals_change_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        log = StoreLog(store, clock)
        assert (log.bounds(0), log.is_copied, log.refusal) == ((0, 0), False, "")
        log.append(0, b"a")
        log.append(1, b"of another table")
        log.append(0, b"b")
        store.fence = lambda: "no lease"
        with pytest.raises(RequestError, match="no lease"):
            log.append(0, b"c")
        assert log.refusal == "no lease"
        assert log.bounds(0) == (0, 2)
        assert [log.body(0, at) for at in range(2)] == [b"a", b"b"]


def test_a_record_of_a_client_is_none_of_the_journal(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        batch = PutBatch(1)
        add_message(store, batch, TABLES_TOPIC)
        batch.trusted = True
        store.put(batch)
        log = StoreLog(store, clock)
        assert log.bounds(0) == (0, 1)
        with pytest.raises(ValueError, match="client"):
            log.body(0, 0)


@pytest.mark.parametrize("missing", [None, *Missing])
def test_only_a_master_alone_confirms_what_no_replica_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Missing | None
) -> None:
    async def wait_confirmed(store: MessageStore, end: int) -> Missing | None:
        return missing

    monkeypatch.setattr(MessageStore, "wait_confirmed", wait_confirmed)
    with open_store(tmp_path) as store:
        log = StoreLog(store, FakeClock())
        if missing in (None, Missing.NO_REPLICA):
            asyncio.run(log.confirm())
        else:
            with pytest.raises(RequestError):
                asyncio.run(log.confirm())
