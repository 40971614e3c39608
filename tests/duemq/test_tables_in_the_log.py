"""Topics and consumer groups that only the log has: after a kill, and on a promoted replica."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from duemq.broker.broker import Broker
from duemq.broker.role_runner import RoleRunner
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.replication.role import ReplicationRole
from duemq_common.codes import RequestCode
from duemq_common.topics import TABLES_TOPIC
from tests.support.killed_copy import copy_as_killed
from tests.support.replica_rig import until
from tests.support.running_broker import BrokerClient, connected, running, small

REPLICA = ReplicationRole(is_replica=True, own_id=2)
MASTER = ReplicationRole(is_replica=False, own_id=2)
ALONE = {"brokerRole": "SYNC_MASTER", "enableAutoInSyncReplicas": "true"}


@asynccontextmanager
async def replica_of(master: Broker, root: Path) -> AsyncIterator[RoleRunner]:
    """Run a replica that knows the replication port only: it never copies a table."""

    def new_broker(role: ReplicationRole) -> Broker:
        if not role.is_replica:
            return Broker(small(root, brokerId="0"))
        source = f"127.0.0.1:{master.ha_port}"
        keys = {"brokerRole": "SLAVE", "brokerId": "2", "haMasterAddress": source}
        return Broker(small(root, **keys, syncFromLastFile="true"))

    runner = RoleRunner(new_broker, REPLICA)
    work = asyncio.create_task(runner.run())
    await runner.serves()
    yield runner
    runner.stop()
    assert await work == ""


async def create(client: BrokerClient, name: str, queues: int) -> None:
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "order": "false",
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0


def tables_of(broker: Broker) -> list[object]:
    """Return topics and groups with their versions."""
    topics, groups = broker.parts.topics.to_json(), broker.parts.groups.to_json()
    tables = topics["topicConfigTable"], groups["subscriptionGroupTable"]
    return [*tables, topics["dataVersion"], groups["dataVersion"]]


def test_a_promoted_replica_knows_topics_and_groups_without_a_copy(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path / "master")) as (master, client):
            await create(client, "Early", 3)
            assert master.store.queue_bounds(TABLES_TOPIC, 0) == (0, 0)
            async with replica_of(master, tmp_path / "replica") as runner:
                await until(lambda: master.parts.ha_server and master.parts.ha_server.connections)
                await master.parts.append_snapshots()
                await create(client, "Late", 5)
                await create(client, "Gone", 1)
                await create(client, "Again", 1)
                for name in ("Gone", "Again"):
                    assert (await client.send(name, b"x", DELAY="1")).code == 0
                    fields = {"topic": name}
                    code = RequestCode.DELETE_TOPIC_IN_BROKER
                    assert (await client.call(code, fields)).code == 0
                await create(client, "Again", 2)
                assert (await client.send("Late", b"due", DELAY="1")).code == 0
                master.parts.groups.find_or_create("used")
                await master.parts.groups.update([GroupConfig(name="set", retry_times_max=3)])
                assert runner.broker is not None
                replica = runner.broker.store
                await until(lambda: replica.max_offset == master.store.max_offset)
                assert runner.broker.parts.topics.find("Late") is None
                expected = tables_of(master)
                runner.assign(MASTER)
                await runner.serves()
                assert tables_of(runner.broker) == expected
                assert runner.broker.parts.topics.find("Gone") is None
                async with connected(runner.broker.address) as heir:
                    found = await heir.pull("Late", 0)
                    assert (found.code, b"due" in bytes(found.body)) == (0, True)

    asyncio.run(main())


def test_a_kill_between_a_change_and_the_file_loses_nothing(tmp_path: Path) -> None:
    """The directory of a running broker, with the files as they were before the changes."""

    async def main() -> None:
        async with running(small(tmp_path, **ALONE)) as (broker, client):
            await create(client, "Before", 1)
            broker.parts.topics.persist()
            broker.parts.groups.persist()
            config = broker.store.config_path(".")
            copy_as_killed(config, tmp_path / "before")
            await create(client, "After", 7)
            await create(client, "Before", 2)
            broker.parts.groups.find_or_create("used")
            expected = tables_of(broker)
            copy_as_killed(broker.store.root, tmp_path / "killed" / "store")
        for name in ("topics.json", "subscriptionGroup.json"):
            shutil.copy(tmp_path / "before" / name, tmp_path / "killed" / "store" / "config" / name)
        async with running(small(tmp_path / "killed")) as (broker, client):
            assert tables_of(broker) == expected

    asyncio.run(main())


def test_a_broker_without_replicas_writes_no_journal(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, client):
            await create(client, "T", 1)
            broker.parts.groups.find_or_create("used")
            await broker.parts.append_snapshots()
            assert broker.store.max_offset == 0

    asyncio.run(main())


def test_a_master_that_may_not_append_changes_no_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **ALONE)) as (broker, client):
            await create(client, "T", 1)
            version = broker.parts.topics.version
            broker.store.fence = lambda: "no lease"
            for name in ("T", "New"):
                fields = {"topic": name}
                response = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, fields)
                assert response.code == (14 if name == "T" else 0)
                response = await client.send("New", b"x")
                assert response.code == 14
            assert broker.parts.groups.find_or_create("used") == GroupConfig(name="used")
            assert broker.parts.groups.find("used") is None
            assert broker.parts.topics.find("T") == TopicConfig(
                name="T", read_queues=1, write_queues=1
            )
            assert broker.parts.topics.version == version

    asyncio.run(main())


def test_a_send_to_a_replica_creates_no_topic(tmp_path: Path) -> None:
    """It would have the version of a change of the master, which would then count as known."""

    async def main() -> None:
        async with (
            running(small(tmp_path / "a", **ALONE)) as (master, _),
            replica_of(master, tmp_path / "b") as runner,
        ):
            assert runner.broker is not None
            topics = runner.broker.parts.topics
            version = topics.version
            async with connected(runner.broker.address) as client:
                assert (await client.send("New", b"x")).code == 14
                assert topics.find("New") is None
                assert topics.version == version

    asyncio.run(main())
