"""A broker whose role is SLAVE."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delayed_delivery.names import MASTER_FIELD
from duemq.replication.clock_comparison import CHECK_MS
from duemq.replication.ha_client import HaState
from duemq.replication.replica import Replica, with_master_config
from duemq.replication.slave_synchronize import SlaveSynchronize
from duemq.transactions.transactions import Transactions
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import ConfigError, PeerError
from duemq_common.request import bytes_of
from duemq_migration.requests import replica_text
from message_store.retention.pins import UNKNOWN
from message_store.store import MessageStore
from tests.support.fakes import settle
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

    monkeypatch.setattr("duemq.broker.assembly.Transactions", made)

    async def main() -> None:
        async with running(small(tmp_path, **REPLICA)) as (broker, remote):
            response = await remote.send("T", b"body")
            assert response.code == 14
            assert "send to the master" in response.remark
            assert broker.store.max_offset == 0

    asyncio.run(main())
    assert writable == [False]


def test_retention_removes_nothing_before_the_master_has_answered(tmp_path: Path) -> None:
    """The pins of plugins, which do not run here, do not count: the master has those of its own."""

    async def main() -> None:
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            retention, replica = broker.store.retention, broker.parts.replica
            assert retention.first_pinned() is UNKNOWN
            assert replica is not None
            replica.tables.first_needed = 4_096
            assert retention.first_pinned() == 4_096

    asyncio.run(main())


def test_a_topic_that_the_master_has_created_again_has_no_offsets(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **REPLICA)) as (broker, _):
            offsets = broker.parts.offsets
            for topic in ("T", "U"):
                offsets.commit("G", topic, 0, 3)
                offsets.commit("G", topic, 1, 3)
            for observer in broker.store.raw.restarted:
                observer("T", None)
                observer("U", 0)
            assert offsets.topics_of("G") == ["U"]
            assert offsets.of_pair("G", "U")[0] == {1: 3}

    asyncio.run(main())


@pytest.mark.parametrize("master", ["127.0.0.1:9", ""], ids=["known", "unknown"])
def test_a_replica_refers_a_migration_command_to_its_master(master: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **REPLICA)) as (broker, remote):
            replica = broker.parts.replica
            assert replica is not None
            replica.tables.follow(master)
            for action in ("status", "start", "rollback"):
                response = await remote.call(
                    RequestCode.MIGRATE, body=b'{"action": "%s"}' % action.encode()
                )
                assert (response.code, response.remark) == (
                    ResponseCode.SYSTEM_ERROR,
                    replica_text(master),
                )
                assert response.fields == {MASTER_FIELD: master}
                assert master in replica_text(master)
            shown = await remote.call(RequestCode.GET_VIEW, {"view": "migration.status"})
            assert json.loads(bytes_of(shown))["why_not"] == replica_text(master)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("is_receiving", "is_end_known", "transferred", "requested", "lag"),
    [
        (True, True, 500, None, 0),
        (True, True, 700, None, 200),
        (True, False, 500, None, None),
        (True, False, 500, 9_000, 8_500),
        (True, True, 900, 500, 400),
        (True, True, None, 500, 0),
        (False, True, 500, 500, None),
    ],
    ids=[
        "heartbeat",
        "behind",
        "only transfers",
        "catch-up",
        "newer transfer",
        "first bytes",
        "silent or lost",
    ],
)
def test_the_lag_is_unknown_unless_the_end_of_the_master_s_log_is_known(
    is_receiving: bool, is_end_known: bool, transferred: int | None, requested: int | None, lag: int
) -> None:
    ha = SimpleNamespace(
        is_receiving=is_receiving,
        is_end_known=is_end_known,
        master_offset=transferred,
        state=HaState.TRANSFER,
        address="",
        failure="",
    )
    tables = SimpleNamespace(log_end=requested, address="", synchronized_ms=None, failure="")
    store = SimpleNamespace(max_offset=500)
    shown = Replica(*cast("Any", (store, None, ha, tables, FakeClock()))).view()
    equal = 0 if lag == 0 else None
    assert (shown["lagBytes"], shown["lagMessages"], shown["lagMs"]) == (lag, equal, equal)
    assert (shown["masterLogEnd"] is None) is (lag is None)


class Idle(SimpleNamespace):
    """HA client or copier of tables that only waits until it is stopped."""

    async def run(self) -> None:
        self.stopped = asyncio.Event()
        await self.stopped.wait()

    def stop(self) -> None:
        self.stopped.set()


def test_a_clock_that_differs_from_the_master_s_is_a_failure_of_the_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    store = SimpleNamespace(
        max_offset=100,
        last_record=50,
        raw=SimpleNamespace(observers=[]),
        store_ms=lambda offset: clock.now_ms() + 3_600_000,
    )
    ha = Idle(
        is_receiving=True,
        is_end_known=True,
        master_offset=100,
        state=HaState.TRANSFER,
        address="10.0.0.1:10912",
        failure="",
    )
    tables = Idle(log_end=100, address="", synchronized_ms=None, failure="")
    held = SimpleNamespace(on_replicated=None)
    replica = Replica(*cast("Any", (store, held, ha, tables, clock)))

    async def main() -> None:
        async with replica.running():
            await settle()
            assert replica.view()["failure"] == ""
            for end in (200, 300):
                store.max_offset = ha.master_offset = end
                clock.advance(CHECK_MS)
                await settle()
                assert "3600 s ahead of this broker's" in str(replica.view()["failure"])

    asyncio.run(main())
    assert sum("3600 s ahead" in line for line in caplog.messages) == 1


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
