"""Route table: live brokers and their topics. Does no I/O and reads no clock.

    103 register -----+
    104 unregister ---+--> brokers: name -> {id: address}     --> 105 route of a topic
    channel closed ---+    topics:  topic -> {name: queues}   --> 106, 206, 224, ...
    expire(now) ------+    live:    (cluster, address) -> last heartbeat, version, channel

    A topic entry exists only while its broker name has an address. A registration updates topics
        if its version differs from the last one; topics that it does not contain are unchanged.

Source: RouteInfoManager
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from duemq.registry.topic_config import TopicConfig
from duemq_common.broker_ids import BROKER_ID_MAX, MASTER_ID
from duemq_common.codes import ResponseCode
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from duemq_common.topics import PERM_READ, PERM_WRITE

BROKERS_MAX = 10_000
TOPICS_MAX = 262_144
NAME_CHARS_MAX = 255


class QueueData(NamedTuple):
    """Queues of a topic on one broker name."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int


class BrokerAddrInfo(NamedTuple):
    """Identity of a broker process."""

    cluster: str
    address: str


class Registration(Struct, frozen=True, kw_only=True):
    """Registration of a broker (103).

    Attributes:
        topics: All topics of the broker, or only its changed topics.
        channel: Connection of the broker; None: the broker runs in this process.
        expires_after_ms: Time without a heartbeat after which the broker is removed; None: never.
        acting_master: Value of `enableActingMaster`; None: the broker is older than 5.0.
        local: The broker runs in this process; registrations by network cannot replace it.
        filter_servers: Entries of `filterServerList`.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    topics: Sequence[TopicConfig]
    channel: object | None = None
    expires_after_ms: int | None = None
    acting_master: bool | None = None
    local: bool = False
    filter_servers: tuple[str, ...] = ()


class RegistrationResult(Struct, frozen=True):
    """Response to a registration: addresses of the master, for a slave; otherwise empty."""

    ha_address: str = ""
    master_address: str = ""


class BrokerData(Struct):
    """Addresses and topics of one broker name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    acting_master: bool = False


class BrokerLiveInfo(Struct):
    """State of a registered broker process."""

    broker_name: str
    last_ms: int
    expires_after_ms: int | None
    version: DataVersion
    channel: object | None
    ha_address: str
    filter_servers: tuple[str, ...]


class RouteTable:
    """Brokers and topics of a name server."""

    def __init__(self) -> None:
        self._brokers: dict[str, BrokerData] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._live: dict[BrokerAddrInfo, BrokerLiveInfo] = {}
        self._local: set[str | None] = set()  # addresses of the broker in this process

    # -- registration -------------------------------------------------------------------------

    def register(self, registration: Registration, now_ms: int) -> RegistrationResult:
        """Register a broker and its topics.

        Raises:
            RequestError: The registration is refused; nothing changed.
        Source: RouteInfoManager.registerBroker
        """
        data = self._brokers.get(registration.broker_name)
        old_address = data.addresses.get(registration.broker_id) if data else None
        self._check(registration, data, old_address)
        key = BrokerAddrInfo(registration.cluster, registration.address)
        live = self._live.get(key)
        if live is not None and live.broker_name != registration.broker_name:
            self.unregister(key)  # the same process under a new name
        data = self._brokers.setdefault(registration.broker_name, BrokerData(registration.cluster))
        for other in [
            n for n, address in data.addresses.items() if address == registration.address
        ]:
            del data.addresses[other]
        data.addresses[registration.broker_id] = registration.address
        if registration.local:
            data.cluster = registration.cluster
            self._local.add(registration.address)
        data.acting_master = bool(registration.acting_master)
        if self._may_set_topics(registration, data):
            self._update_topics(
                registration, data, replace=old_address is None or self._differs(key, registration)
            )
        self._live[key] = BrokerLiveInfo(
            registration.broker_name,
            now_ms,
            registration.expires_after_ms,
            registration.version,
            registration.channel,
            registration.ha_address,
            registration.filter_servers,
        )
        return self._master_for(registration, data)

    def _check(
        self, registration: Registration, data: BrokerData | None, old_address: str | None
    ) -> None:
        if not registration.local:
            self._check_identity(registration, old_address)
        if data is None and len(self._brokers) >= BROKERS_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{BROKERS_MAX} brokers are registered")
        if old_address is None and len(registration.topics) == 1:
            name = registration.broker_name
            text = f"broker {name} is new but has only one topic; it may have lost its topics"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        new = sum(topic.name not in self._topics for topic in registration.topics)
        if new and len(self._topics) + new > TOPICS_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"more than {TOPICS_MAX} topics")
        if old_address is None or old_address == registration.address:
            return
        other = self._live.get(BrokerAddrInfo(registration.cluster, old_address))
        if other is not None and other.version.state_version > registration.version.state_version:
            name = registration.broker_name
            text = f"{name}: {old_address} is registered with a newer state version"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)

    def _check_identity(self, registration: Registration, old_address: str | None) -> None:
        """Raise if an identity is invalid or is that of the broker in this process."""
        text = ""
        if not 0 <= registration.broker_id <= BROKER_ID_MAX:
            text = f"broker id {registration.broker_id} must be from 0 to {BROKER_ID_MAX}"
        elif (
            max(map(len, (registration.cluster, registration.broker_name, registration.address)))
            > NAME_CHARS_MAX
        ):
            text = f"a name or an address has more than {NAME_CHARS_MAX} characters"
        elif {registration.address, old_address} & self._local:
            name, address = registration.broker_name, old_address or registration.address
            text = f"{name} at {address} is the broker of this process"
        if text:
            raise RequestError(ResponseCode.NO_PERMISSION, f"registration refused: {text}")

    @staticmethod
    def _may_set_topics(registration: Registration, data: BrokerData) -> bool:
        if registration.broker_id == MASTER_ID:
            return True
        return registration.acting_master is not None and registration.broker_id == min(
            data.addresses
        )

    def _differs(self, key: BrokerAddrInfo, registration: Registration) -> bool:
        live = self._live.get(key)
        return live is None or live.version != registration.version

    def _update_topics(
        self, registration: Registration, data: BrokerData, *, replace: bool
    ) -> None:
        read_only = registration.broker_id != MASTER_ID and data.acting_master
        for topic in registration.topics:
            brokers = self._topics.setdefault(topic.name, {})
            data.topics.add(topic.name)
            if replace or registration.broker_name not in brokers:
                perm = topic.perm & ~PERM_WRITE if read_only else topic.perm
                brokers[registration.broker_name] = QueueData(
                    topic.read_queues, topic.write_queues, perm, topic.sys_flag
                )

    def _master_for(self, registration: Registration, data: BrokerData) -> RegistrationResult:
        master = data.addresses.get(MASTER_ID)
        live = self._live.get(BrokerAddrInfo(registration.cluster, master)) if master else None
        if registration.broker_id == MASTER_ID or master is None or live is None:
            return RegistrationResult()
        return RegistrationResult(live.ha_address, master)

    def record_heartbeat(self, key: BrokerAddrInfo, now_ms: int) -> bool:
        """Record a heartbeat of a broker; return whether it is registered."""
        live = self._live.get(key)
        if live is not None:
            live.last_ms = now_ms
        return live is not None

    def version_of(self, key: BrokerAddrInfo) -> DataVersion | None:
        """Return the version of a broker's last registration."""
        live = self._live.get(key)
        return live.version if live else None

    # -- removal ------------------------------------------------------------------------------

    def unregister(self, key: BrokerAddrInfo) -> bool:
        """Remove a broker process; return whether it was registered.

        Source: RouteInfoManager.unRegisterBroker
        """
        live = self._live.pop(key, None)
        if live is None:
            return False
        self._local.discard(key.address)
        data = self._brokers.get(live.broker_name)
        if data is None:
            return True
        for broker_id in [n for n, position in data.addresses.items() if position == key.address]:
            del data.addresses[broker_id]
        if not data.addresses:
            del self._brokers[live.broker_name]
            for topic in data.topics:
                self._remove_queues(lambda name: name == live.broker_name, topic)
        return True

    def address_of(self, broker_name: str, broker_id: int) -> str | None:
        """Return the address of a broker name and id; None if not registered."""
        data = self._brokers.get(broker_name)
        return data.addresses.get(broker_id) if data is not None else None

    def is_local(self, key: BrokerAddrInfo) -> bool:
        """Return whether an address is that of the broker in this process."""
        return key.address in self._local

    def is_known(self, registration: Registration) -> bool:
        """Return whether the broker process is already registered."""
        return BrokerAddrInfo(registration.cluster, registration.address) in self._live

    def count_of(self, channel: object) -> int:
        """Return the number of brokers whose last heartbeat came on a connection."""
        return sum(live.channel is channel for live in self._live.values())

    def drop_brokers_on(self, channel: object) -> list[BrokerAddrInfo]:
        """Remove the brokers that registered on a connection; return their keys."""
        gone = [key for key, live in self._live.items() if live.channel is channel]
        for key in gone:
            self.unregister(key)
        return gone

    def expire(self, now_ms: int) -> list[BrokerAddrInfo]:
        """Remove the brokers whose heartbeat is overdue; return their keys."""
        expired = [
            key
            for key, live in self._live.items()
            if live.expires_after_ms is not None and now_ms - live.last_ms > live.expires_after_ms
        ]
        for key in expired:
            self.unregister(key)
        return expired

    def drop_topic_of(self, broker_name: str, topic: str) -> None:
        """Remove the queues of a topic on one broker."""
        self._remove_queues(lambda name: name == broker_name, topic)

    def _remove_queues(self, unwanted: Callable[[str], bool], topic: str) -> None:
        brokers = self._topics.get(topic, {})
        for broker_name in [each for each in brokers if unwanted(each)]:
            del brokers[broker_name]
            if (data := self._brokers.get(broker_name)) is not None:
                data.topics.discard(topic)
        if not brokers:
            self._topics.pop(topic, None)

    # -- administration -----------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Delete the route of a topic, in all clusters or in one (216)."""
        if not cluster:
            self._remove_queues(lambda name: True, topic)
            return
        self._remove_queues(lambda name: self._cluster_of(name) == cluster, topic)

    def add_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Add the queues of a topic on registered brokers that lack it (217).

        Raises:
            RequestError: There are too many topics.
        Source: RouteInfoManager.registerTopic
        """
        registered = {name: data for name, data in queues.items() if name in self._brokers}
        if len(registered) < len(queues) or not registered:
            return
        if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"more than {TOPICS_MAX} topics")
        brokers = self._topics.setdefault(topic, {})
        for name, data in registered.items():
            brokers.setdefault(name, data)
            self._brokers[name].topics.add(topic)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Allow or forbid writing to all topics of a broker; return their number (205, 327).

        Source: RouteInfoManager.operateWritePermOfBroker
        """
        count = 0
        broker = self._brokers.get(broker_name)
        for topic in broker.topics if broker is not None else ():
            brokers = self._topics.get(topic, {})
            data = brokers.get(broker_name)
            if data is not None:
                perm = PERM_READ | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                brokers[broker_name] = data._replace(perm=perm)
                count += 1
        return count

    # -- queries ------------------------------------------------------------------------------

    def route(self, topic: str) -> dict[str, object] | None:
        """Return TopicRouteData without order configuration; None: no broker has the topic.

        Source: RouteInfoManager.pickupTopicRouteData
        """
        brokers = self._topics.get(topic)
        if not brokers:
            return None
        names = sorted(brokers)
        return {
            "brokerDatas": [self._broker_json(name) for name in names],
            "filterServerTable": {
                address: servers for name in names for address, servers in self._servers(name)
            },
            "queueDatas": [_queue_json(name, brokers[name]) for name in names],
        }

    def cluster_info(self) -> dict[str, object]:
        """Return ClusterInfo (106)."""
        return {
            "brokerAddrTable": {name: self._broker_json(name) for name in sorted(self._brokers)},
            "clusterAddrTable": {name: self.brokers_of(name) for name in self.clusters()},
        }

    def member_group(self, cluster: str, broker_name: str) -> dict[str, object]:
        """Return BrokerMemberGroup (901)."""
        data = self._brokers.get(broker_name)
        broker_data = data if data is not None and data.cluster == cluster else BrokerData(cluster)
        addresses = {str(n): address for n, address in sorted(broker_data.addresses.items())}
        return {"brokerAddrs": addresses, "brokerName": broker_name, "cluster": cluster}

    def clusters(self) -> list[str]:
        """Return the cluster names, sorted."""
        return sorted({data.cluster for data in self._brokers.values()})

    def brokers_of(self, cluster: str) -> list[str]:
        """Return the broker names of a cluster, sorted."""
        return sorted(name for name in self._brokers if self._cluster_of(name) == cluster)

    def first_address(self) -> str:
        """Return the lowest address of the first broker by name; empty if none is registered."""
        for name in sorted(self._brokers):
            addresses = self._brokers[name].addresses
            return addresses[min(addresses)]
        return ""

    def topics(self) -> list[str]:
        """Return all topics, sorted (206)."""
        return sorted(self._topics)

    def topics_of(self, cluster: str) -> list[str]:
        """Return the topics of the brokers of a cluster, sorted (224)."""
        names = set(self.brokers_of(cluster))
        return sorted(topic for topic, brokers in self._topics.items() if names & brokers.keys())

    def topics_where(self, predicate: Callable[[int], bool]) -> list[str]:
        """Return the topics whose system flag satisfies `predicate`, sorted (311, 312, 313)."""
        return sorted(
            topic
            for topic, brokers in self._topics.items()
            if any(predicate(data.sys_flag) for data in brokers.values())
        )

    def live(self) -> Iterator[tuple[BrokerAddrInfo, BrokerLiveInfo]]:
        """Yield every registered broker process."""
        yield from self._live.items()

    def _cluster_of(self, broker_name: str) -> str:
        data = self._brokers.get(broker_name)
        return data.cluster if data else ""

    def _servers(self, broker_name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each address of a broker name with its filter servers, if it has some."""
        data = self._brokers[broker_name]
        for address in data.addresses.values():
            live = self._live.get(BrokerAddrInfo(data.cluster, address))
            if live is not None and live.filter_servers:
                yield address, live.filter_servers

    def _broker_json(self, name: str) -> dict[str, object]:
        data = self._brokers[name]
        return {
            "brokerAddrs": {str(n): address for n, address in sorted(data.addresses.items())},
            "brokerName": name,
            "cluster": data.cluster,
            "enableActingMaster": data.acting_master,
        }


def _queue_json(broker_name: str, data: QueueData) -> dict[str, object]:
    return {
        "brokerName": broker_name,
        "perm": data.perm,
        "readQueueNums": data.read_queues,
        "topicSysFlag": data.sys_flag,
        "writeQueueNums": data.write_queues,
    }
