"""Broker under test, chosen by an environment variable, and its configuration."""

from __future__ import annotations

import os
from pathlib import Path

from tests.interop.apache import NEWEST, VERSIONS, Apache
from tests.support.duemq_server import DueMQ
from tests.support.server import Server

PEER_VARIABLE = "DUEMQ_INTEROP_PEER"
LEVELS_MS = (1_000, 2_000, 3_000)  # the third is the level of the first retry: 3 s instead of 10
KEYS = {
    "messageDelayLevel": "1s 2s 3s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "mappedFileSizeCommitLog": str(64 << 20),
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    # Check open transactions soon. Apache 5 marks settled ones in batches, which must be sooner.
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "500",
    "transactionOpBatchInterval": "100",
}


def peer_name() -> str:
    """Return the broker under test: `duemq` (default), or `apache-` with a version."""
    return os.environ.get(PEER_VARIABLE, "duemq")


def make_peer(home: Path) -> Server:
    """Return the broker to test, not started.

    Raises:
        ValueError: The variable has an unknown value.
    """
    name = peer_name()
    if name == "duemq":
        peer = DueMQ(home, keys=KEYS)
        peer.keys["grpcServerPort"] = str(peer.grpc_port)
        return peer
    version = name.removeprefix("apache-")
    if version not in (versions := (*VERSIONS, NEWEST)):
        names = ", ".join(f"apache-{each}" for each in versions)
        raise ValueError(f"{PEER_VARIABLE}={name}: use duemq, or one of {names}")
    return Apache(version, home, keys=KEYS)
