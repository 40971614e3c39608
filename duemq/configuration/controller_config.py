"""Configuration section of controller mode: Apache's controller decides the broker's role.

Source: BrokerConfig, MessageStoreConfig
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from duemq.configuration.addresses import parse_addresses
from duemq_common.config import INT_MAX, expanded, option
from duemq_common.errors import ConfigError

EPOCH_FILE: Final = "epochFileCheckpoint"
IDENTITY_FILE: Final = "brokerIdentity"
CONTROLLERS_MAX: Final = 16
CALL_MS_MAX: Final = 3_000
BEATS_MIN: Final = 2  # minimum heartbeats within the time limit, so that one may be lost


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Membership in a group: brokers of one name, of which a controller elects a master."""

    enabled: bool = option(
        False,
        "enableControllerMode",
        "Have Apache's controller decide whether this broker is master or replica.",
    )
    addresses: str = option(
        "",
        "controllerAddr",
        "Controllers, `host:port;host:port`; the broker finds their leader.",
        unit="addresses",
    )
    in_sync_check_ms: int = option(
        5_000,
        "checkSyncStateSetPeriod",
        "Period at which a master compares the sync state set with its replicas.",
        minimum=100,
    )
    leader_check_ms: int = option(
        10_000,
        "syncControllerMetadataPeriod",
        "Period at which the broker searches for the leader of the controllers.",
        minimum=100,
    )
    heartbeat_limit_ms: int = option(
        10_000,
        "controllerHeartBeatTimeoutMills",
        "Time without a heartbeat after which the controller elects another master; this broker "
        "stops acknowledging before that.",
        minimum=500,
    )
    heartbeat_ms: int = option(
        1_000,
        "brokerHeartbeatInterval",
        "Period of heartbeats to the controllers, and of requests for the group's master.",
        minimum=50,
    )
    election_priority: int = option(
        INT_MAX,
        "brokerElectionPriority",
        "Of members with the same log, the one with the lowest priority is elected.",
        minimum=0,
    )
    is_learner: bool = option(
        False,
        "asyncLearner",
        "Copy the log without joining the sync state set: this broker is never elected, and no "
        "message waits for it.",
    )
    catch_up_ms_max: int = option(
        15_000,
        "haMaxTimeSlaveNotCatchup",
        "Time for which a replica may lag before it leaves the sync state set.",
        minimum=100,
    )
    epoch_text: str = option(
        "",
        "storePathEpochFile",
        f"File of epochs; empty: `{EPOCH_FILE}` in storePathRootDir.",
        unit="path",
    )
    identity_text: str = option(
        "",
        "storePathBrokerIdentity",
        f"File of the id that the controller assigned; empty: `{IDENTITY_FILE}` in "
        "storePathRootDir.",
        unit="path",
    )

    def __post_init__(self) -> None:
        addresses = parse_addresses("controllerAddr", self.addresses)
        if self.enabled and not addresses:
            reason = "name the controllers, such as controllerAddr=10.0.0.1:9878"
            raise ConfigError("controllerAddr", self.addresses, reason)
        if len(addresses) > CONTROLLERS_MAX:
            reason = f"at most {CONTROLLERS_MAX} controllers"
            raise ConfigError("controllerAddr", self.addresses, reason)
        if self.heartbeat_limit_ms < BEATS_MIN * self.heartbeat_ms:
            reason = (
                f"must be {BEATS_MIN} times brokerHeartbeatInterval ({self.heartbeat_ms}) or more"
            )
            raise ConfigError(
                "controllerHeartBeatTimeoutMills", str(self.heartbeat_limit_ms), reason
            )

    @property
    def controllers(self) -> tuple[str, ...]:
        """`host:port` of each controller, in the order of the configuration."""
        return tuple(parse_addresses("controllerAddr", self.addresses))

    @property
    def call_s(self) -> float:
        """Time limit of a request to a controller, in s; a later response extends no lease."""
        return min(CALL_MS_MAX, self.heartbeat_limit_ms) / 1_000

    def epoch_file(self, root: Path) -> Path:
        """Return the file of epochs of the store below `root`."""
        text = self.epoch_text
        return expanded("storePathEpochFile", text) if text else root / EPOCH_FILE

    def identity_file(self, root: Path) -> Path:
        """Return the file of the assigned id of the store below `root`."""
        text = self.identity_text
        return expanded("storePathBrokerIdentity", text) if text else root / IDENTITY_FILE
