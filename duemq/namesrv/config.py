"""Configuration section of the name server.

Source: NamesrvConfig, NettyServerConfig
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from duemq.auth.config import AuthConfig
from duemq.configuration.config import BrokerConfig, check_ip
from duemq.configuration.shared_options import (
    bind_address_option,
    channel_idle_option,
    connections_max_option,
    log_format_option,
    proxy_protocol_option,
    socket_backlog_option,
)
from duemq.net.allowed_networks import parse_sources
from duemq.net.tls_config import TlsConfig
from duemq_common.config import option


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """Addresses, permissions and expiry times of the name server."""

    listen_port: int = option(
        9_876, "listenPort", "Port of the name server; 0: any free port.", minimum=0, maximum=65_535
    )
    bind_address: str = bind_address_option()
    cluster_name: str = option(
        "DefaultCluster",
        "brokerClusterName",
        "Cluster on which an administrative request needs a permission, with accounts.",
    )
    kv_config_path: str = option(
        "~/namesrv/kvConfig.json", "kvConfigPath", "File of the key-value table.", unit="path"
    )
    register_from: str = option(
        "any",
        "registerFrom",
        "Networks whose brokers may register, separated by `;`, for example `10.0.0.0/8`; `any`, "
        "or "
        "`loopback` for brokers on this machine. A registered broker receives messages, so "
        "allow only the brokers' networks.",
        unit="networks",
        own=True,
    )
    administer_from: str = option(
        "loopback",
        "administerFrom",
        "Networks that may forbid writing to a broker, delete topics, and change key-value pairs "
        "and the configuration of the name server; same form; loopback is always allowed.",
        unit="networks",
        own=True,
    )
    order_message_enable: bool = option(
        False,
        "orderMessageEnable",
        "Include the order configuration of a topic in its route.",
        wire=True,
    )
    return_order_config: bool = option(
        True,
        "returnOrderTopicConfigToBroker",
        "Return the order configuration of all topics to a broker that registers.",
        wire=True,
    )
    scan_interval_ms: int = option(
        5_000,
        "scanNotActiveBrokerInterval",
        "Pause between two searches for inactive brokers.",
        minimum=100,
    )
    broker_expired_ms: int = option(
        120_000,
        "brokerChannelExpiredTime",
        "Time without registrations after which a broker is removed, unless its registration "
        "specifies another time.",
        minimum=1_000,
        own=True,
    )
    channel_idle_s: int = channel_idle_option()
    socket_backlog: int = socket_backlog_option()
    connections_max: int = connections_max_option()
    proxy_protocol_from: str = proxy_protocol_option()
    log_format: str = log_format_option()
    config_blacklist: str = option(
        "configBlackList;configStorePath;kvConfigPath",
        "configBlackList",
        "Keys that a request may not change, separated by `;`.",
    )

    @classmethod
    def embedded_in(cls, broker: BrokerConfig, kv_config_path: str) -> NamesrvConfig:
        """Return the configuration of the name server inside a broker."""
        return cls(
            listen_port=broker.embedded_namesrv_port,
            bind_address=broker.bind_address,
            kv_config_path=kv_config_path,
            register_from=broker.embedded_register_from,
            administer_from=broker.embedded_administer_from,
            proxy_protocol_from=broker.proxy_protocol_from,
        )

    def __post_init__(self) -> None:
        check_ip("bindAddress", self.bind_address)
        parse_sources("registerFrom", self.register_from)
        parse_sources("administerFrom", self.administer_from)
        parse_sources("proxyProtocolFrom", self.proxy_protocol_from)


SECTIONS: Final = (NamesrvConfig, AuthConfig, TlsConfig)
"""Sections of a name server's configuration."""
