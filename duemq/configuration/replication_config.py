"""Configuration section of replication.

Source: MessageStoreConfig, BrokerConfig
"""

from __future__ import annotations

from dataclasses import dataclass

from duemq.configuration.addresses import parse_addresses
from duemq_common.config import option
from duemq_common.errors import ConfigError

SYNC_MASTER = "SYNC_MASTER"
MASTERS = ("ASYNC_MASTER", SYNC_MASTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Role of the broker, and the connection between master and replica."""

    role: str = option(
        "ASYNC_MASTER",
        "brokerRole",
        "SYNC_MASTER: acknowledge and deliver messages once replicas have them (inSyncReplicas). "
        "SLAVE: copy the log of a master, with a brokerId above 0.",
        choices=(*MASTERS, "SLAVE"),
    )
    ha_master_address: str = option(
        "",
        "haMasterAddress",
        "Replication address of the master, `host:port` (haListenPort there); empty: the name "
        "server returns it.",
        unit="addresses",
    )
    heartbeat_ms: int = option(
        5_000,
        "haSendHeartbeatInterval",
        "Pause after which an idle replica reports the end of its log.",
        minimum=100,
    )
    idle_ms_max: int = option(
        20_000,
        "haHousekeepingInterval",
        "Time without bytes from the master after which the replica connects again.",
        minimum=1_000,
    )
    sync_from_last_file: bool = option(
        False,
        "syncFromLastFile",
        "Begin an empty replica with the last file of the master's log; false: with the first one. "
        "Messages that are pending in older files would be lost with the master.",
    )
    slave_read_enable: bool = option(
        False,
        "slaveReadEnable",
        "Serve pulls on a replica; false: redirect consumers to the master.",
    )

    def __post_init__(self) -> None:
        parse_addresses("haMasterAddress", self.ha_master_address)

    @property
    def is_replica(self) -> bool:
        """Whether this broker copies a master's log."""
        return self.role == "SLAVE"

    def check_id(self, broker_id: int) -> None:
        """Check that the broker's id fits the role.

        Raises:
            ConfigError: A replica has no id above 0, or a master has an id that is not 0.
        """
        if self.is_replica and broker_id <= 0:
            reason = "a replica has a brokerId above 0, such as brokerId=1"
            raise ConfigError("brokerRole", self.role, reason)
        if broker_id and not self.is_replica:
            reason = f"an id above 0 is a replica's: set brokerRole=SLAVE (it is {self.role}), or 0"
            raise ConfigError("brokerId", str(broker_id), reason)
