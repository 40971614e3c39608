"""Configuration section of the name server.

Source: NamesrvConfig, NettyServerConfig
"""

from __future__ import annotations

from dataclasses import dataclass

from duemq.configuration.config import check_ip
from duemq.namesrv.allowed_networks import parse_sources
from message_store.config import option


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """The name server: where it listens and when it forgets a broker."""

    listen_port: int = option(
        9_876,
        key="listenPort",
        doc="Port of the name server; 0: any free port.",
        unit="port",
        minimum=0,
        maximum=65_535,
    )
    bind_address: str = option(
        "0.0.0.0",
        key="bindAddress",
        doc="Address to listen on; any other than a loopback address is open to other machines, "
        "without authentication.",
        unit="IP address",
    )
    kv_config_path: str = option(
        "~/namesrv/kvConfig.json",
        key="kvConfigPath",
        doc="File of the key-value table.",
        unit="path",
    )
    register_from: str = option(
        "any",
        key="registerFrom",
        doc="Networks whose brokers may register, separated by `;`, as in `10.0.0.0/8`; `any`, or "
        "`loopback` for brokers of this machine. A broker that registers receives messages, so "
        "name the brokers' network.",
        unit="networks",
        own=True,
    )
    administer_from: str = option(
        "loopback",
        key="administerFrom",
        doc="Networks that may forbid writing to a broker, delete topics, and change key-value "
        "pairs and the configuration of the name server, in the same form; loopback always may.",
        unit="networks",
        own=True,
    )
    order_message_enable: bool = option(
        False,
        key="orderMessageEnable",
        doc="Put the order configuration of a topic into its route.",
        live=True,
        wire=True,
    )
    return_order_config: bool = option(
        True,
        key="returnOrderTopicConfigToBroker",
        doc="Answer a registration with the order configuration of all topics.",
        live=True,
        wire=True,
    )
    scan_interval_ms: int = option(
        5_000,
        key="scanNotActiveBrokerInterval",
        doc="Pause between two searches for brokers that have gone.",
        unit="ms",
        minimum=100,
    )
    broker_expired_ms: int = option(
        120_000,
        key="brokerChannelExpiredTime",
        doc="A broker whose registrations stop for so long is forgotten, unless it named a time.",
        unit="ms",
        minimum=1_000,
        own=True,
    )
    channel_idle_s: int = option(
        120,
        key="serverChannelMaxIdleTimeSeconds",
        doc="A connection silent for so long is closed.",
        unit="s",
        minimum=1,
    )
    socket_backlog: int = option(
        1_024,
        key="serverSocketBacklog",
        doc="Connections that may wait to be accepted.",
        unit="connections",
        minimum=1,
        maximum=65_535,
    )
    connections_max: int = option(
        20_000,
        key="connectionsMax",
        doc="Connections open at one time; one more is closed at once. At most half of the file "
        "descriptors that the process may have (1,024 fewer when it may have many).",
        unit="connections",
        minimum=1,
        own=True,
    )
    config_blacklist: str = option(
        "configBlackList;configStorePath;kvConfigPath",
        key="configBlackList",
        doc="Keys that a request may not change, separated by `;`.",
    )

    def __post_init__(self) -> None:
        check_ip("bindAddress", self.bind_address)
        parse_sources("registerFrom", self.register_from)
        parse_sources("administerFrom", self.administer_from)
