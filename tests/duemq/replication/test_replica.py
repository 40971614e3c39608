"""A broker whose role is SLAVE."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duemq.transactions.transactions import Transactions
from message_store.retention.pins import UNKNOWN
from message_store.store import MessageStore
from tests.support.running_broker import running, small

REPLICA = {"brokerRole": "SLAVE", "brokerId": "1"}


def test_nothing_is_appended_before_the_first_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery of transactions writes the op records of torn commits: the log would diverge."""
    writable: list[bool] = []

    def made(store: MessageStore, *others: Any) -> Transactions:
        writable.append(store.writable)
        return Transactions(store, *others)

    monkeypatch.setattr("duemq.assembly.Transactions", made)

    async def main() -> None:
        async with running(small(tmp_path, **REPLICA)) as (broker, asker):
            answer = await asker.send("T", b"body")
            assert answer.code == 14
            assert "send to the master" in answer.remark
            assert broker.store.max_offset == 0

    asyncio.run(main())
    assert writable == [False]


def test_retention_removes_nothing_before_the_master_has_answered(tmp_path: Path) -> None:
    """The pins of plugins, which do not run here, do not count: the master has asked its own."""

    async def main() -> None:
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            retention, replica = broker.store.retention, broker.parts.replica
            assert retention.first_pinned() is UNKNOWN
            assert replica is not None
            replica.tables.first_needed = 4_096
            assert retention.first_pinned() == 4_096

    asyncio.run(main())
