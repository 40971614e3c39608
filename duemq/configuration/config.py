"""Configuration section of the broker.

Source: BrokerConfig, NettyServerConfig, NettySystemConfig
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from duemq.namesrv.allowed_networks import parse_sources
from message_store.config import LONG_MAX, option
from message_store.errors import ConfigError

NAME_CHARS_MAX = 127
REGION_CHARS_MAX = 127  # every message and every answer to a send carries the region


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Who this broker is, where it listens and registers, and what it lets clients do."""

    cluster_name: str = option(
        "DefaultCluster", key="brokerClusterName", doc="Cluster this broker belongs to."
    )
    broker_name: str = option(
        "",
        key="brokerName",
        doc="Name of this broker in routes, unique in the cluster; empty: the host's name.",
    )
    broker_id: int = option(
        0,
        key="brokerId",
        doc="0: master. DueMQ runs masters only.",
        minimum=0,
        maximum=0,
    )
    broker_ip: str = option(
        "",
        key="brokerIP1",
        doc="Address that clients are told to connect to; empty: this machine's first address.",
        unit="IP address",
    )
    listen_port: int = option(
        10_911,
        key="listenPort",
        doc="Port for clients; 0: any free port.",
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
    vip_channel_enable: bool = option(
        True,
        key="vipChannelEnable",
        doc="Listen on listenPort - 2 as well, as Apache does; a port in use there is a warning.",
        own=True,
    )
    namesrv_addresses: str = option(
        "",
        key="namesrvAddr",
        doc="Name servers to register with, `host:port` separated by `;`.",
        unit="addresses",
        live=True,
    )
    embedded_namesrv_enable: bool = option(
        False,
        key="embeddedNamesrvEnable",
        doc="Run a name server inside the broker process.",
        own=True,
    )
    embedded_namesrv_port: int = option(
        9_876,
        key="embeddedNamesrvPort",
        doc="Port of the name server inside the broker; 0: any free port.",
        unit="port",
        minimum=0,
        maximum=65_535,
        own=True,
    )
    embedded_register_from: str = option(
        "loopback",
        key="embeddedNamesrvRegisterFrom",
        doc="Networks whose brokers may register with the embedded name server, separated by `;`, "
        "as in `10.0.0.0/8`; `any`, or `loopback` for brokers of this machine.",
        unit="networks",
        own=True,
    )
    embedded_administer_from: str = option(
        "loopback",
        key="embeddedNamesrvAdministerFrom",
        doc="Networks that may administer the embedded name server (forbid writing, delete topics, "
        "change key-value pairs), in the same form; loopback always may.",
        unit="networks",
        own=True,
    )
    register_interval_ms: int = option(
        30_000,
        key="registerNameServerPeriod",
        doc="Pause between two registrations with the name servers.",
        unit="ms",
        minimum=100,
    )
    register_timeout_ms: int = option(
        24_000,
        key="registerBrokerTimeoutMills",
        doc="Longest wait for the answer of a name server.",
        unit="ms",
        minimum=1,
    )
    permission: int = option(
        6,
        key="brokerPermission",
        doc="What clients may do here: 2 write, 4 read, 6 both.",
        minimum=0,
        maximum=7,
        live=True,
        wire=True,
    )
    auto_create_topic: bool = option(
        True,
        key="autoCreateTopicEnable",
        doc="Create a topic when the first message for it arrives.",
    )
    topics_max: int = option(
        262_144,
        key="topicsMax",
        doc="Topics of this broker, retry topics of groups included; one more is refused.",
        unit="topics",
        minimum=64,
        maximum=1 << 20,
        own=True,
    )
    groups_max: int = option(
        131_072,
        key="consumerGroupsMax",
        doc="Consumer groups of this broker; one more is refused.",
        unit="groups",
        minimum=64,
        maximum=1 << 20,
        own=True,
    )
    client_groups_max: int = option(
        4_096,
        key="clientGroupsMax",
        doc="Producer and consumer groups of one connection; a heartbeat with more is refused.",
        unit="groups",
        minimum=1,
        maximum=65_536,
        own=True,
    )
    heartbeat_subscriptions_max: int = option(
        65_536,
        key="heartbeatSubscriptionsMax",
        doc="Subscriptions in one heartbeat, of all its groups; one with more is refused.",
        unit="subscriptions",
        minimum=1,
        maximum=1 << 20,
        own=True,
    )
    offsets_max: int = option(
        1_000_000,
        key="consumerOffsetsMax",
        doc="Topics of groups whose consumer offsets are kept; one more is refused.",
        unit="pairs",
        minimum=64,
        maximum=16 << 20,
        own=True,
    )
    default_topic_queues: int = option(
        8,
        key="defaultTopicQueueNums",
        doc="Queues of the template topic TBW102: the most an automatically created topic gets.",
        unit="queues",
        minimum=1,
        maximum=65_536,
    )
    auto_create_group: bool = option(
        True,
        key="autoCreateSubscriptionGroup",
        doc="Create a consumer group when it is first seen.",
        live=True,
        wire=True,
    )
    cluster_topic_enable: bool = option(
        True, key="clusterTopicEnable", doc="The topic named like the cluster may be written."
    )
    broker_topic_enable: bool = option(
        True, key="brokerTopicEnable", doc="The topic named like the broker may be written."
    )
    trace_topic_enable: bool = option(
        False, key="traceTopicEnable", doc="Create the topic for message traces at start."
    )
    trace_topic: str = option(
        "RMQ_SYS_TRACE_TOPIC", key="msgTraceTopicName", doc="Topic for message traces."
    )
    trace_on: bool = option(
        True, key="traceOn", doc="Tell clients that tracing is on (MSG_REGION, TRACE_ON)."
    )
    region_id: str = option(
        "DefaultRegion",
        key="regionId",
        doc="Region that answers and traces carry; at most 127 characters.",
    )
    flush_consumer_offset_ms: int = option(
        5_000,
        key="flushConsumerOffsetInterval",
        doc="Pause between two writes of consumerOffset.json.",
        unit="ms",
        minimum=100,
    )
    long_polling_enable: bool = option(
        True, key="longPollingEnable", doc="Hold a pull that finds nothing until a message comes."
    )
    short_polling_ms: int = option(
        1_000,
        key="shortPollingTimeMills",
        doc="How long a pull is held when long polling is off.",
        unit="ms",
        minimum=1,
        live=True,
        wire=True,
    )
    long_polls_max: int = option(
        100_000,
        key="longPollsMax",
        doc="Pulls held at one time; one more is answered at once.",
        unit="pulls",
        minimum=1,
        own=True,
    )
    notify_consumer_change: bool = option(
        True,
        key="notifyConsumerIdsChangedEnable",
        doc="Tell the members of a group when one comes or goes.",
    )
    channel_expired_ms: int = option(
        120_000,
        key="channelExpiredTimeout",
        doc="A client whose heartbeats stop for so long is forgotten.",
        unit="ms",
        minimum=1_000,
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
    server_side_reset: bool = option(
        True,
        key="useServerSideResetOffset",
        doc="Reset offsets at the broker only; false: also push them to the group's members.",
        live=True,
        wire=True,
    )
    memory_bytes_max: int = option(
        512 << 20,
        key="remotingMemoryMax",
        doc="Memory that all connections together may hold: received frames, requests in hand, "
        "held pulls, unread answers. When it is used up, connections that are stuck for the "
        "longest are closed.",
        unit="bytes",
        minimum=64 << 20,
        maximum=LONG_MAX,
        own=True,
    )
    reject_transactions: bool = option(
        False,
        key="rejectTransactionMessage",
        doc="Refuse transactional messages.",
        live=True,
        wire=True,
    )
    transaction_timeout_ms: int = option(
        6_000,
        key="transactionTimeOut",
        doc="Age of a half message before its producer is first asked.",
        unit="ms",
        minimum=1,
        live=True,
        wire=True,
    )
    transaction_checks_max: int = option(
        15,
        key="transactionCheckMax",
        doc="Times a producer is asked before a half message is set aside.",
        unit="checks",
        minimum=1,
        live=True,
        wire=True,
    )
    transaction_check_interval_ms: int = option(
        30_000,
        key="transactionCheckInterval",
        doc="Pause between two rounds of asking producers.",
        unit="ms",
        minimum=1,
        live=True,
        wire=True,
    )
    property_filter_enable: bool = option(
        False,
        key="enablePropertyFilter",
        doc="SQL filters on properties; not supported: `true` has no effect, and a subscription "
        "with such a filter is answered with an error.",
    )
    recall_enable: bool = option(
        False,
        key="recallMessageEnable",
        doc="Let producers cancel a message that waits for its time, by its recall handle.",
        live=True,
        wire=True,
    )
    recall_unwritable: bool = option(
        True,
        key="allowRecallWhenBrokerNotWriteable",
        doc="Take such cancels also while brokerPermission forbids writing.",
        live=True,
        wire=True,
    )
    start_accept_ms: int = option(
        0,
        key="startAcceptSendRequestTimeStamp",
        doc="Sends before this moment are refused.",
        unit="ms since 1970",
        minimum=0,
        maximum=LONG_MAX,
    )
    config_blacklist: str = option(
        "configBlackList;brokerConfigPath",
        key="configBlackList",
        doc="Keys that a request may not change, separated by `;`.",
    )
    metrics_exporter: str = option(
        "PROM",
        key="metricsExporterType",
        doc="PROM: serve /metrics for Prometheus; DISABLE, and Apache's other exporters: do not.",
        choices=("PROM", "DISABLE", "OTLP_GRPC", "LOG"),
    )
    metrics_host: str = option(
        "",
        key="metricsPromExporterHost",
        doc="Address of /metrics; empty: bindAddress.",
        unit="IP address",
    )
    metrics_port: int = option(
        5_557,
        key="metricsPromExporterPort",
        doc="Port of /metrics; 0: any free port. Unless it was set, a port in use is a warning.",
        unit="port",
        minimum=0,
        maximum=65_535,
    )
    plugins_disabled: str = option(
        "",
        key="brokerPluginDisabled",
        doc="Names of installed plugins that are not loaded, separated by `;`.",
        own=True,
    )
    config_watch_ms: int = option(
        5_000,
        key="configWatchInterval",
        doc="Pause between two looks at the configuration file for changes; 0: only on SIGHUP.",
        unit="ms",
        minimum=0,
        own=True,
    )

    def __post_init__(self) -> None:
        _check_name("brokerClusterName", self.cluster_name)
        if self.broker_name:
            _check_name("brokerName", self.broker_name)
        _check_region(self.region_id)
        check_ip("brokerIP1", self.broker_ip, empty=True)
        check_ip("bindAddress", self.bind_address)
        parse_sources("embeddedNamesrvRegisterFrom", self.embedded_register_from)
        parse_sources("embeddedNamesrvAdministerFrom", self.embedded_administer_from)
        parse_addresses("namesrvAddr", self.namesrv_addresses)

    @property
    def namesrv_list(self) -> list[tuple[str, int]]:
        """Host and port of each external name server."""
        return parse_addresses("namesrvAddr", self.namesrv_addresses)

    @property
    def disabled_plugins(self) -> frozenset[str]:
        """Names of the plugins that are not loaded."""
        return frozenset(word.strip() for word in self.plugins_disabled.split(";") if word.strip())

    @property
    def frozen_keys(self) -> frozenset[str]:
        """Keys that request 25 may not change."""
        listed = {word.strip() for word in self.config_blacklist.split(";")}
        return frozenset(listed | {"brokerConfigPath", "rocketmqHome", "configBlackList"})


def parse_addresses(key: str, text: str) -> list[tuple[str, int]]:
    """Return host and port of `host:port;host:port`.

    Raises:
        ConfigError: An entry is not of that form.
    """
    found = []
    for word in text.replace(",", ";").split(";"):
        if not word.strip():
            continue
        host, colon, port = word.strip().rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
            raise ConfigError(key, text, f"{word.strip()!r} is not host:port")
        found.append((host, int(port)))
    return found


def _check_name(key: str, name: str) -> None:
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise ConfigError(key, name, f"must have 1 to {NAME_CHARS_MAX} characters")
    if not all(char.isascii() and (char.isalnum() or char in "%|-_.") for char in name):
        raise ConfigError(key, name, "may hold only letters, digits, and % | - _ .")


def _check_region(text: str) -> None:
    if len(text) > REGION_CHARS_MAX or any(not "!" <= char <= "~" or char == "@" for char in text):
        why = f"must be at most {REGION_CHARS_MAX} printable ASCII characters without blanks and @"
        raise ConfigError("regionId", text[:REGION_CHARS_MAX], why)


def check_ip(key: str, text: str, *, empty: bool = False) -> None:
    if empty and not text:
        return
    try:
        ipaddress.ip_address(text)
    except ValueError:
        why = "must be an IP address such as 10.0.0.5, not a host name"
        raise ConfigError(key, text, why) from None
