"""Configuration section of a master: port for replicas, replicas in sync.

Source: MessageStoreConfig, BrokerStartup (default of haListenPort)
"""

from __future__ import annotations

from dataclasses import dataclass

from duemq.net.allowed_networks import parse_sources
from duemq_common.config import option

APACHE_BUFFER_BYTES = 4 << 20
"""Receive buffer of Apache's replicas: they cannot receive a longer transfer."""
TRANSFER_BYTES_MAX = APACHE_BUFFER_BYTES - 4_096
COPIES_MAX = 17  # this master and 16 replicas (REPLICAS_MAX of `ha_server`)
REPLICAS_FROM = "replicasFrom"
PORT_DISTANCE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HaServerConfig:
    """Port for replicas, size of transfers, and the replicas that a message waits for."""

    listen_port: int = option(
        0,
        "haListenPort",
        "Port that replicas copy the log from; 0: the port after listenPort.",
        minimum=0,
        maximum=65_535,
    )
    replicas_from: str = option(
        "loopback",
        REPLICAS_FROM,
        "Networks that replicas may connect from, separated by `;`, as in `10.0.0.0/8`; loopback "
        "is always allowed. A replica reads every message.",
        unit="networks",
        own=True,
    )
    transfer_bytes_max: int = option(
        1 << 20,
        "haTransferBatchSize",
        "Maximum bytes of the log in one transfer (RocketMQ: 32 KiB; its replicas accept 4 MiB).",
        unit="bytes",
        minimum=1_024,
        maximum=TRANSFER_BYTES_MAX,
    )

    gap_bytes_max: int = option(
        256 << 20,
        "haMaxGapNotInSync",
        "Lag at which a replica is no longer in sync.",
        unit="bytes",
        minimum=1,
        live=True,
    )
    in_sync_replicas: int = option(
        1,
        "inSyncReplicas",
        "SYNC_MASTER: required copies of a message, this master's included, before it is "
        "acknowledged and can be consumed; 1 counts as 2.",
        minimum=1,
        maximum=COPIES_MAX,
        wire=True,
    )
    in_sync_replicas_min: int = option(
        1,
        "minInSyncReplicas",
        "SYNC_MASTER: number of replicas in sync, this master included, below which messages are "
        "refused.",
        minimum=1,
        maximum=COPIES_MAX,
        wire=True,
    )
    all_ack: bool = option(
        False,
        "allAckInSyncStateSet",
        "SYNC_MASTER: wait for every replica in sync, regardless of inSyncReplicas.",
        wire=True,
    )
    auto_in_sync_replicas: bool = option(
        False,
        "enableAutoInSyncReplicas",
        "SYNC_MASTER: when fewer replicas are in sync than inSyncReplicas, wait for these only "
        "(down to minInSyncReplicas), possibly for none.",
        wire=True,
    )
    replica_timeout_ms: int = option(
        3_000,
        "slaveTimeout",
        "SYNC_MASTER: maximum time a message waits for replicas; after it the response is "
        "FLUSH_SLAVE_TIMEOUT.",
        minimum=1,
        wire=True,
    )

    def __post_init__(self) -> None:
        parse_sources(REPLICAS_FROM, self.replicas_from)

    def port_after(self, listen_port: int) -> int:
        """Return the port for replicas of a broker on `listen_port`; 0: any free port."""
        return self.listen_port or (listen_port and listen_port + PORT_DISTANCE)
