"""Configuration section of the broker.

Source: BrokerConfig, NettyServerConfig, NettySystemConfig
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from duemq.configuration.addresses import parse_addresses
from duemq.configuration.shared_options import (
    bind_address_option,
    busy_poll_option,
    channel_idle_option,
    connections_max_option,
    log_format_option,
    proxy_protocol_option,
    socket_backlog_option,
)
from duemq.net.allowed_networks import parse_sources, trusted_proxies
from duemq_common.config import LONG_MAX, option
from duemq_common.errors import ConfigError
from duemq_common.topics import TRACE_TOPIC

NAME_CHARS_MAX = 127
REGION_CHARS_MAX = 127  # the region is in every message and every response to a send


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Identity, addresses and limits of the broker."""

    cluster_name: str = option(
        "DefaultCluster", "brokerClusterName", "Cluster this broker belongs to."
    )
    broker_name: str = option(
        "",
        "brokerName",
        "Name of this broker in routes, unique in the cluster; empty: the host's name.",
    )
    broker_id: int = option(
        0,
        "brokerId",
        "0: master. Above 0: replica, with brokerRole=SLAVE. Ignored with enableControllerMode.",
        minimum=-1,
    )
    broker_ip: str = option(
        "",
        "brokerIP1",
        "Address announced to clients; empty: this machine's first address.",
        unit="IP address",
    )
    listen_port: int = option(
        10_911, "listenPort", "Port for clients; 0: any free port.", minimum=0, maximum=65_535
    )
    bind_address: str = bind_address_option()
    busy_poll_us: int = busy_poll_option()
    proxy_protocol_from: str = proxy_protocol_option()
    administer_from: str = option(
        "loopback",
        "administerFrom",
        "Networks that may administer the broker while there are no accounts (topics, groups, "
        "offsets, configuration), separated by `;`, as in `10.0.0.0/8`; loopback is always "
        "allowed.",
        unit="networks",
        own=True,
    )
    vip_channel_enable: bool = option(
        True,
        "vipChannelEnable",
        "Also listen on listenPort - 2, as RocketMQ does; a port in use there is a warning.",
        own=True,
    )
    namesrv_addresses: str = option(
        "",
        "namesrvAddr",
        "Name servers to register with, `host:port` separated by `;`.",
        unit="addresses",
        live=True,
    )
    embedded_namesrv_enable: bool = option(
        False, "embeddedNamesrvEnable", "Run a name server inside the broker process.", own=True
    )
    embedded_namesrv_port: int = option(
        9_876,
        "embeddedNamesrvPort",
        "Port of the name server inside the broker; 0: any free port.",
        minimum=0,
        maximum=65_535,
        own=True,
    )
    embedded_register_from: str = option(
        "loopback",
        "embeddedNamesrvRegisterFrom",
        "Networks whose brokers may register with the embedded name server, separated by `;`, "
        "as in `10.0.0.0/8`; `any`, or `loopback` for brokers of this machine.",
        unit="networks",
        own=True,
    )
    embedded_administer_from: str = option(
        "loopback",
        "embeddedNamesrvAdministerFrom",
        "Networks that may administer the embedded name server (forbid writing, delete topics, "
        "change key-value pairs), in the same form; loopback is always allowed.",
        unit="networks",
        own=True,
    )
    register_interval_ms: int = option(
        30_000,
        "registerNameServerPeriod",
        "Pause between two registrations with the name servers.",
        minimum=100,
    )
    register_timeout_ms: int = option(
        24_000,
        "registerBrokerTimeoutMills",
        "Timeout of a registration with a name server.",
        minimum=1,
    )
    permission: int = option(
        6,
        "brokerPermission",
        "Permission of clients: 2 write, 4 read, 6 both.",
        minimum=0,
        maximum=7,
        wire=True,
    )
    auto_create_topic: bool = option(
        True, "autoCreateTopicEnable", "Create a topic when the first message for it arrives."
    )
    topics_max: int = option(
        262_144,
        "topicsMax",
        "Maximum topics, including retry topics of groups; a further topic is refused.",
        minimum=64,
        maximum=1 << 20,
        own=True,
    )
    groups_max: int = option(
        131_072,
        "consumerGroupsMax",
        "Maximum consumer groups; a further group is refused.",
        minimum=64,
        maximum=1 << 20,
        own=True,
    )
    client_groups_max: int = option(
        4_096,
        "clientGroupsMax",
        "Maximum producer and consumer groups of one connection; a heartbeat with more is refused.",
        minimum=1,
        maximum=65_536,
        own=True,
    )
    heartbeat_subscriptions_max: int = option(
        65_536,
        "heartbeatSubscriptionsMax",
        "Maximum subscriptions in one heartbeat, over all groups; a heartbeat with more is "
        "refused.",
        minimum=1,
        maximum=1 << 20,
        own=True,
    )
    offsets_max: int = option(
        1_000_000,
        "consumerOffsetsMax",
        "Maximum pairs of topic and group with a consumer offset; a further pair is refused.",
        unit="pairs",
        minimum=64,
        maximum=16 << 20,
        own=True,
    )
    default_topic_queues: int = option(
        8,
        "defaultTopicQueueNums",
        "Queues of the template topic TBW102: the maximum for an automatically created topic.",
        unit="queues",
        minimum=1,
        maximum=65_536,
    )
    auto_create_group: bool = option(
        True,
        "autoCreateSubscriptionGroup",
        "Create a consumer group at its first request.",
        wire=True,
    )
    cluster_topic_enable: bool = option(
        True, "clusterTopicEnable", "Allow sends to the topic named after the cluster."
    )
    broker_topic_enable: bool = option(
        True, "brokerTopicEnable", "Allow sends to the topic named after the broker."
    )
    trace_topic_enable: bool = option(
        False, "traceTopicEnable", "Create the topic for message traces at start."
    )
    trace_topic: str = option(TRACE_TOPIC, "msgTraceTopicName", "Topic for message traces.")
    trace_on: bool = option(
        True, "traceOn", "Announce to clients that tracing is on (MSG_REGION, TRACE_ON)."
    )
    region_id: str = option(
        "DefaultRegion", "regionId", "Region in responses and traces; at most 127 characters."
    )
    flush_consumer_offset_ms: int = option(
        5_000,
        "flushConsumerOffsetInterval",
        "Pause between two writes of consumerOffset.json.",
        minimum=100,
    )
    long_polling_enable: bool = option(
        True, "longPollingEnable", "Hold a pull that finds no message until one arrives."
    )
    short_polling_ms: int = option(
        1_000,
        "shortPollingTimeMills",
        "Time that a pull is held when long polling is off.",
        minimum=1,
        wire=True,
    )
    long_polls_max: int = option(
        100_000,
        "longPollsMax",
        "Maximum pulls on hold; further pulls get their response at once.",
        unit="pulls",
        minimum=1,
        own=True,
    )
    notify_consumer_change: bool = option(
        True,
        "notifyConsumerIdsChangedEnable",
        "Notify the members of a group when a member joins or leaves.",
    )
    channel_expired_ms: int = option(
        120_000,
        "channelExpiredTimeout",
        "Time without heartbeats after which a client is removed.",
        minimum=1_000,
    )
    channel_idle_s: int = channel_idle_option()
    socket_backlog: int = socket_backlog_option()
    connections_max: int = connections_max_option()
    server_side_reset: bool = option(
        True,
        "useServerSideResetOffset",
        "Reset offsets at the broker only; false: also push them to the members of the group.",
        wire=True,
    )
    server_load_balancer: bool = option(
        True,
        "serverLoadBalancerEnable",
        "Assign the queues of a topic to the members of a group that request their assignment.",
    )
    default_request_mode: str = option(
        "PULL",
        "defaultMessageRequestMode",
        "Consume mode of groups with an assignment by the broker, unless set by setConsumeMode.",
        choices=("PULL", "POP"),
    )
    default_shared_queues: int = option(
        -1,
        "defaultPopShareQueueNum",
        "Default number of members whose queues each member pops too; 0 or less: all queues.",
        unit="members",
    )
    memory_bytes_max: int = option(
        512 << 20,
        "remotingMemoryMax",
        "Maximum memory of all connections together: received frames, requests in flight, long "
        "polls, unread responses. Above it, the connections that have been stuck longest are "
        "closed.",
        minimum=64 << 20,
        maximum=LONG_MAX,
        own=True,
    )
    reject_transactions: bool = option(
        False, "rejectTransactionMessage", "Refuse transactional messages.", wire=True
    )
    transaction_timeout_ms: int = option(
        6_000,
        "transactionTimeOut",
        "Age at which the producer of a half message is first checked.",
        minimum=1,
        wire=True,
    )
    transaction_checks_max: int = option(
        15,
        "transactionCheckMax",
        "Maximum check-backs of a half message; then it is given up.",
        minimum=1,
        wire=True,
    )
    transaction_check_interval_ms: int = option(
        30_000,
        "transactionCheckInterval",
        "Pause between two rounds of transaction checks.",
        minimum=1,
        wire=True,
    )
    property_filter_enable: bool = option(
        True,
        "enablePropertyFilter",
        "Support SQL92 property filters; `false`: refuse them with code 1.",
    )
    priority_ascends: bool = option(
        True,
        "priorityOrderAsc",
        "Pop the queue with the highest number first in topics of type PRIORITY; `false`: queue 0.",
        live=True,
    )
    recall_enable: bool = option(
        False,
        "recallMessageEnable",
        "Allow producers to cancel a pending message by its recall handle.",
        wire=True,
    )
    recall_reports_unknown: bool = option(
        True,
        "recallReportsUnknown",
        "Respond with code 604 to a recall of a message that is not pending; `false`: with "
        "success, as Apache's broker does.",
        live=True,
        own=True,
    )
    recall_unwritable: bool = option(
        True,
        "allowRecallWhenBrokerNotWriteable",
        "Accept recalls also while brokerPermission forbids writing.",
        wire=True,
    )
    start_accept_ms: int = option(
        0,
        "startAcceptSendRequestTimeStamp",
        "Time before which sends are refused.",
        unit="ms since 1970",
        minimum=0,
        maximum=LONG_MAX,
    )
    config_blacklist: str = option(
        "configBlackList;brokerConfigPath",
        "configBlackList",
        "Keys that a request may not change, separated by `;`.",
    )
    log_format: str = log_format_option()
    metrics_exporter: str = option(
        "PROM",
        "metricsExporterType",
        "PROM: serve /metrics for Prometheus; DISABLE and RocketMQ's other exporters: serve no "
        "metrics.",
        choices=("PROM", "DISABLE", "OTLP_GRPC", "LOG"),
    )
    metrics_host: str = option(
        "",
        "metricsPromExporterHost",
        "Address of /metrics; empty: bindAddress, with accounts 127.0.0.1.",
        unit="IP address",
    )
    metrics_port: int = option(
        5_557,
        "metricsPromExporterPort",
        "Port of /metrics; 0: any free port. A port in use is a warning, unless this key is set.",
        minimum=0,
        maximum=65_535,
    )
    grpc_port: int = option(
        0,
        "grpcServerPort",
        "Port for RocketMQ 5 clients (gRPC, with or without TLS), 8081 by convention; 0: none.",
        minimum=0,
        maximum=65_535,
    )
    console_port: int = option(
        0,
        "consolePort",
        "Port of console and HTTP API (HTTPS with certificates), 8088 by convention; 0: none.",
        minimum=0,
        maximum=65_535,
        own=True,
    )
    console_host: str = option(
        "",
        "consoleHost",
        "Address of the HTTP API; empty: bindAddress with certificates, 127.0.0.1 without.",
        unit="IP address",
        own=True,
    )
    console_rate_max: int = option(
        20_000,
        "consoleRateMax",
        "Requests per second of one account, or of one address without accounts; 0: no limit.",
        minimum=0,
        own=True,
    )
    console_read_only: bool = option(
        False,
        "consoleReadOnly",
        "Whether each login of the console may only view; the HTTP API is not concerned.",
        own=True,
    )
    console_proxies: str = option(
        "",
        "consoleProxies",
        "Networks of proxies in front of the HTTP API whose headers X-Forwarded-For and "
        "X-Forwarded-Proto are used; empty: these headers are not used.",
        unit="networks",
        own=True,
    )
    topic_type_check: bool = option(
        True,
        "enableTopicMessageTypeCheck",
        "Accept from v5 clients only messages of the type in the topic's attribute "
        "message.type (default NORMAL), as RocketMQ's proxy does.",
        live=True,
    )
    plugins_disabled: str = option(
        "",
        "brokerPluginDisabled",
        "Names of installed plugins that are not loaded, separated by `;`.",
        own=True,
    )
    config_watch_ms: int = option(
        5_000,
        "configWatchInterval",
        "Pause between two checks of the configuration file for changes; 0: reload only on SIGHUP.",
        minimum=0,
        own=True,
    )

    def __post_init__(self) -> None:
        _check_name("brokerClusterName", self.cluster_name)
        if self.broker_name:
            _check_name("brokerName", self.broker_name)
        _check_region(self.region_id)
        check_ip("brokerIP1", self.broker_ip)
        check_ip("bindAddress", self.bind_address)
        parse_sources("embeddedNamesrvRegisterFrom", self.embedded_register_from)
        parse_sources("embeddedNamesrvAdministerFrom", self.embedded_administer_from)
        parse_sources("proxyProtocolFrom", self.proxy_protocol_from)
        parse_sources("administerFrom", self.administer_from)
        trusted_proxies("consoleProxies", self.console_proxies)
        parse_addresses("namesrvAddr", self.namesrv_addresses)

    @property
    def namesrv_list(self) -> list[str]:
        """`host:port` of each external name server."""
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


def _check_name(key: str, name: str) -> None:
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise ConfigError(key, name, f"must have 1 to {NAME_CHARS_MAX} characters")
    if not all(char.isascii() and (char.isalnum() or char in "%|-_.") for char in name):
        raise ConfigError(key, name, "may contain only letters, digits, and % | - _ .")


def _check_region(text: str) -> None:
    if len(text) > REGION_CHARS_MAX or any(not "!" <= char <= "~" or char == "@" for char in text):
        reason = (
            f"must be at most {REGION_CHARS_MAX} printable ASCII characters without blanks and @"
        )
        raise ConfigError("regionId", text[:REGION_CHARS_MAX], reason)


def check_ip(key: str, text: str) -> None:
    if not text:
        return
    try:
        ipaddress.ip_address(text)
    except ValueError:
        reason = "must be an IP address such as 10.0.0.5, not a host name"
        raise ConfigError(key, text, reason) from None
