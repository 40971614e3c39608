"""Replicas for benchmarks, of the same implementation as their master."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests.interop.apache import Apache
from tests.interop.replicas import ApacheReplica, OurReplica
from tests.support.duemq_server import DueMQ
from tests.support.remoting_requests import call
from tests.support.server import Server
from tests.support.wait_until import until

HEAP = "4g"
RUNTIME_INFO = 28
COPIED_S = 300.0
SYNC_KEYS = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
"""Sends wait for one replica. With Apache's default (`inSyncReplicas` = 1), they wait for none."""


def replica_of(master: Server, home: Path, keys: Mapping[str, str]) -> Server:
    """Return a replica with an empty store; it is not started."""
    if isinstance(master, Apache):
        return ApacheReplica(master.version, master, home, keys=keys)
    return OurReplica(master, home, keys=keys)


def broker_like(server: Server, home: Path, keys: Mapping[str, str]) -> Server:
    """Return a broker of the same implementation with its own name server; it is not started."""
    if isinstance(server, Apache):
        return Apache(server.version, home, keys=keys, heap=HEAP)
    return DueMQ(home, keys=keys)


def log_end(server: Server) -> int:
    """Return the end offset of a broker's log; 0 while the broker does not respond."""
    try:
        response = call(server.broker_port, RUNTIME_INFO, {})
    except OSError:
        return 0
    return int(json.loads(response.body or b"{}").get("table", {}).get("commitLogMaxOffset", 0))


def wait_copied(master: Server, replica: Server) -> None:
    """Wait until a replica has copied its master's whole log."""
    until(
        lambda: 0 < log_end(master) <= log_end(replica),
        seconds=COPIED_S,
        what="the whole log copied",
        poll_s=0.01,
    )
