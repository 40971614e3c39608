"""Due times of levels when a replica with another messageDelayLevel takes over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.broker.role_runner import RoleRunner
from duemq.replication.role import ReplicationRole
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.store import MessageStore
from tests.support.replica_rig import until
from tests.support.running_broker import connected, running, small

MASTERS = {"messageDelayLevel": "1h 2h"}
OTHERS = {"messageDelayLevel": "1s 1s"}
REPLICA = ReplicationRole(is_replica=True, own_id=2)
MASTER = ReplicationRole(is_replica=False, own_id=2)


def delays(store: MessageStore) -> list[int]:
    """Return due time minus store time of each message of level 1 in ms."""
    units = store.units(SCHEDULE_TOPIC, 0, 0, 100)
    return [int(unit["tags_code"]) - store.store_ms(int(unit["phys_offset"])) for unit in units]


def replica_at(root: Path, **keys: str) -> RoleRunner:
    def new_broker(role: ReplicationRole) -> Broker:
        if not role.is_replica:
            return Broker(small(root, brokerId="0", **OTHERS))
        return Broker(small(root, brokerRole="SLAVE", brokerId="2", **keys, **OTHERS))

    return RoleRunner(new_broker, REPLICA)


@pytest.mark.parametrize("knows_master", [True, False], ids=["from the master", "from the log"])
def test_a_promoted_replica_is_not_early(tmp_path: Path, knows_master: bool) -> None:
    async def main() -> None:
        async with running(small(tmp_path / "master", **MASTERS)) as (master, client):
            for _ in range(3):
                assert (await client.send("T", b"due", DELAY="1")).code == 0
            source = f"127.0.0.1:{master.ha_port}"
            alone = {"haMasterAddress": source, "syncFromLastFile": "true"}
            runner = replica_at(tmp_path / "replica", **({} if knows_master else alone))
            work = asyncio.create_task(runner.run())
            await runner.serves()
            assert runner.broker is not None
            assert runner.broker.parts.replica is not None
            replica, store = runner.broker.parts.replica, runner.broker.store
            if knows_master:
                names = {"masterAddr": master.address, "haServerAddr": source}
                replica.on_registered(names)
            else:
                await until(lambda: master.parts.ha_server and master.parts.ha_server.connections)
                await master.scheduler.get_job("schedule_service.tables").func()
            assert (await client.send("T", b"due", DELAY="1")).code == 0
            await until(lambda: store.max_offset == master.store.max_offset)
            runner.assign(MASTER)
            await runner.serves()
            assert delays(runner.broker.store) == [3_600_000] * 4
            async with connected(runner.broker.address) as heir:
                assert (await heir.send("T", b"due", DELAY="1")).code == 0
            assert delays(runner.broker.store) == [3_600_000] * 4 + [1_000]
            runner.stop()
            assert await work == ""

    asyncio.run(main())
