"""Replicas of brokers, as processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.duemq_server import DueMQ
from tests.support.server import Server

REPLICA_ID = "1"


class OurReplica(DueMQ):
    """Our broker as the replica of another server, registered with that server's name server."""

    def __init__(self, master: Server, home: Path, *, keys: Mapping[str, str]) -> None:
        role = {"brokerRole": "SLAVE", "brokerId": REPLICA_ID, "embeddedNamesrvEnable": "false"}
        super().__init__(home, keys={**keys, **role, "slaveReadEnable": "true"})
        self.namesrv_port = master.namesrv_port
