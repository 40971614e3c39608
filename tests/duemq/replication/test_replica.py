"""A broker whose role is SLAVE."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from duemq.admin.views import VIEW_REQUEST
from duemq.cli.client import bytes_of
from duemq.replication.replica import with_master_config
from duemq.replication.slave_synchronize import SlaveSynchronize
from duemq.transactions.transactions import Transactions
from message_store.errors import ConfigError, PeerError
from message_store.retention.pins import UNKNOWN
from message_store.store import MessageStore
from migration.requests import MASTER_FIELD, MIGRATE, SYSTEM_ERROR, replica_text
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
        async with running(small(tmp_path, **REPLICA)) as (broker, remote):
            answer = await remote.send("T", b"body")
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


@pytest.mark.parametrize("master", ["127.0.0.1:9", ""], ids=["known", "unknown"])
def test_a_replica_refers_a_migration_command_to_its_master(master: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **REPLICA)) as (broker, remote):
            replica = broker.parts.replica
            assert replica is not None
            replica.tables.follow(master)
            for action in ("status", "start", "rollback"):
                answer = await remote.call(MIGRATE, body=b'{"action": "%s"}' % action.encode())
                assert (answer.code, answer.remark) == (SYSTEM_ERROR, replica_text(master))
                assert answer.fields == {MASTER_FIELD: master}
                assert master in replica_text(master)
            shown = await remote.call(VIEW_REQUEST, {"view": "migration.status"})
            assert json.loads(bytes_of(shown))["why_not"] == replica_text(master)

    asyncio.run(main())


class AskedMaster:
    """What a replica knows of its master."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def configuration(self) -> tuple[dict[str, str], int]:
        return {"messageDelayLevel": "1x"}, 500


@pytest.mark.parametrize("address", ["127.0.0.1:10911", ""], ids=["known", "unknown"])
def test_nothing_is_copied_of_a_master_whose_levels_cannot_be_used(address: str) -> None:
    """Without the master's address, the log alone has what it promised."""
    begun: list[int] = []

    async def sessions() -> Any:
        begun.append(1)

    def follow(properties: Any, log_end: int) -> None:
        assert (properties["messageDelayLevel"], log_end) == ("1x", 500)
        raise ConfigError("messageDelayLevel", "1x", "not a unit")

    async def main() -> None:
        begin = with_master_config(sessions, cast("SlaveSynchronize", AskedMaster(address)), follow)
        if address:
            with pytest.raises(PeerError, match=f"{address} cannot be used: messageDelayLevel=1x"):
                await begin()
        else:
            await begin()

    asyncio.run(main())
    assert bool(begun) is not bool(address)
