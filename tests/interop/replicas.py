"""Replicas of brokers, as processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.interop.apache import Apache
from tests.interop.store_work import all_places, bounds
from tests.support.duemq_server import DueMQ
from tests.support.server import Server
from tests.support.wait_until import until

REPLICA_ID = "1"
COPIED_S = 60.0
ROLE = {"brokerRole": "SLAVE", "brokerId": REPLICA_ID, "slaveReadEnable": "true"}


class OurReplica(DueMQ):
    """Our broker as the replica of another server, registered with that server's name server."""

    def __init__(self, master: Server, home: Path, *, keys: Mapping[str, str]) -> None:
        super().__init__(home, keys={**keys, **ROLE, "embeddedNamesrvEnable": "false"})
        self.namesrv_port = master.namesrv_port


class ApacheReplica(Apache):
    """Apache's broker as the replica of another server, registered with its name server."""

    def __init__(
        self, version: str, master: Server, home: Path, *, keys: Mapping[str, str]
    ) -> None:
        super().__init__(version, home, keys={**keys, **ROLE})
        self.namesrv_port = master.namesrv_port

    def start_namesrv(self) -> None:
        """Nothing to do: the master has one."""


def log_bytes(server: Server) -> dict[str, bytes]:
    """Return the commit log by file name."""
    files = sorted((server.store_dir / "commitlog").iterdir())
    return {path.name: path.read_bytes() for path in files}


def wait_copied(master: Server, replica: Server) -> None:
    """Return when the replica's queues are as long as the master's."""
    until(
        lambda: bounds(replica, all_places()) == bounds(master, all_places()),
        seconds=COPIED_S,
        what="everything copied",
    )
