"""Replication state at /metrics: known values, and no series for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from duemq.broker.collectors.replication_collector import ReplicationCollector
from tests.support.replica_rig import until
from tests.support.running_broker import running, small

GROUP = {
    "masterEpoch": 7,
    "syncStateSet": [1, 2, 5],
    "leaseMs": 2_500,
    "groupFailure": "",
    "confirmedOffset": 900,
}
UNKNOWN = dict.fromkeys(GROUP)
FIRST = {"id": 2, "address": "10.0.0.2:1", "lagBytes": 500, "lagMessages": 4, "lagMs": 1_500}
SECOND = {"id": None, "address": "10.0.0.3:1", "lagBytes": None, "lagMessages": None, "lagMs": None}
MASTER = {"role": "MASTER", "failure": ""}
CONNECTIONS = {"replicas": [FIRST | {"inSync": True}, SECOND | {"inSync": False}]}
REPLICA = {"role": "SLAVE", "failure": "", "lagBytes": 30, "lagMessages": None, "lagMs": None}


def series(view: dict[str, Any]) -> dict[str, float]:
    """Return what /metrics has of a view, by short name and labels."""
    registry = CollectorRegistry()
    registry.register(ReplicationCollector(lambda: view))
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            name = sample.name.removeprefix("duemq_replication_")
            found[" ".join([name, *sample.labels.values()])] = sample.value
    return found


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({}, {}),
        (MASTER, {"role master": 1}),
        (MASTER | UNKNOWN, {"role master": 1}),
        (
            MASTER | GROUP | CONNECTIONS,
            {
                "role master": 1,
                "epoch": 7,
                "sync_state_set": 3,
                "lease_seconds": 2.5,
                "confirmed_offset": 900,
                "connected_replicas": 2,
                "lag_bytes 2": 500,
                "lag_messages 2": 4,
                "lag_seconds 2": 1.5,
                "replica_in_sync 2": 1,
                "replica_in_sync 10.0.0.3:1": 0,
            },
        ),
        (REPLICA, {"role replica": 1, "lag_bytes itself": 30}),
        (
            REPLICA | {"lagBytes": None, "failure": "at 10.0.0.2:10912", "groupFailure": "x" * 500},
            {"role replica": 1, "failure at N.N.N.N:N": 1, "failure " + "x" * 120: 1},
        ),
    ],
    ids=["nothing", "master", "unknown", "group", "replica", "failures"],
)
def test_only_what_is_known_has_a_series(view: dict[str, Any], expected: dict[str, float]) -> None:
    assert series(view) == expected


def test_a_pair_of_brokers(tmp_path: Path) -> None:
    """Lags of a replica that has everything, then lacks messages."""

    async def main() -> None:
        heartbeats = small(tmp_path / "master", haSendHeartbeatInterval="100")
        async with running(heartbeats) as (master, client):
            keys = {"brokerRole": "SLAVE", "brokerId": "1", "syncFromLastFile": "true"}
            keys["haMasterAddress"] = f"127.0.0.1:{master.ha_port}"
            async with running(small(tmp_path / "replica", **keys)) as (replica, _):
                assert (await client.send("T", b"first")).code == 0
                end = master.store.max_offset
                await until(lambda: _acknowledged(master) == end)
                [name] = [
                    n for n in series(master.parts.replication()) if n.startswith("lag_bytes")
                ]
                replica_name = name.removeprefix("lag_bytes ")
                found = series(master.parts.replication())
                assert [
                    found[f"lag_{unit} {replica_name}"] for unit in ("bytes", "messages", "seconds")
                ] == [0] * 3
                await until(lambda: "lag_bytes itself" in series(replica.parts.replication()))
                mine = series(replica.parts.replication())
                assert [
                    mine[f"lag_{unit} itself"] for unit in ("bytes", "messages", "seconds")
                ] == [0] * 3
                protocol: Any = master.parts.ha_server.connections[0].protocol
                protocol.acknowledged = 0
                assert series(master.parts.replication())[f"lag_messages {replica_name}"] >= 1
                assert series(master.parts.replication())[name] == end
                protocol.acknowledged = 7  # inside a record
                assert f"lag_messages {replica_name}" not in series(master.parts.replication())

    asyncio.run(main())


def _acknowledged(master: Any) -> int | None:
    connections = master.parts.ha_server.connections
    return connections[0].acknowledged if connections else None
