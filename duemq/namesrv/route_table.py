"""Route table: live brokers and their topics. No socket, no clock, no file.

    103 register -----+
    104 unregister ---+--> brokers: name -> {id: address}     --> 105 route of a topic
    channel closed ---+    topics:  topic -> {name: queues}   --> 106, 206, 224, ...
    expire(now) ------+    live:    (cluster, address) -> last heard, version, channel

    A topic entry exists only while its broker name has an address. The topics of a registration
    are taken when its version differs from the last one; topics that it does not hold stay.

Source: RouteInfoManager
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from duemq.net.codes import ResponseCode
from duemq.registry.data_version import DataVersion
from duemq.registry.topic_config import PERM_READ, PERM_WRITE, TopicConfig
from message_store.errors import RequestError

MASTER_ID = 0
BROKERS_MAX = 10_000
TOPICS_MAX = 262_144
BROKER_ID_MAX = (1 << 31) - 1
NAME_CHARS_MAX = 255


class QueueData(NamedTuple):
    """The queues that one broker name has of a topic."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int


class LiveKey(NamedTuple):
    """One broker process."""

    cluster: str
    address: str


class Gone(NamedTuple):
    """A broker process that was dropped, and the connection it was heard on."""

    key: LiveKey
    channel: object | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Registration of a broker (103).

    Attributes:
        topics: all its topics, or only those that changed.
        channel: the connection it came by; None: the broker runs in this process.
        expires_after_ms: silence after which it is dropped; None: never.
        acting_master: `enableActingMaster`; None: a broker before 5.0.
        local: the broker runs in this process; no registration of the network replaces it.
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


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a slave: the address of its master, if there is one."""

    ha_address: str = ""
    master_address: str = ""


@dataclass(slots=True)
class BrokerData:
    """Addresses of one broker name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    acting_master: bool = False


@dataclass(slots=True)
class Live:
    """One broker process that was heard of."""

    broker_name: str
    last_ms: int
    expires_after_ms: int | None
    version: DataVersion
    channel: object | None
    ha_address: str


class RouteTable:
    """Brokers and topics of a name server."""

    def __init__(self) -> None:
        self._brokers: dict[str, BrokerData] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._live: dict[LiveKey, Live] = {}
        self._local: set[str | None] = set()  # addresses of the broker of our own process

    # -- brokers come -------------------------------------------------------------------------

    def register(self, registration: Registration, now_ms: int) -> Registered:
        """Take in a registration.

        Raises:
            RequestError: The registration is refused; nothing changed.
        Source: RouteInfoManager.registerBroker
        """
        data = self._brokers.get(registration.broker_name)
        known = data.addresses.get(registration.broker_id) if data else None
        self._check(registration, data, known)
        key = LiveKey(registration.cluster, registration.address)
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
        if self._leads(registration, data):
            self._take_topics(
                registration, data, all_of_them=known is None or self._differs(key, registration)
            )
        self._live[key] = Live(
            registration.broker_name,
            now_ms,
            registration.expires_after_ms,
            registration.version,
            registration.channel,
            registration.ha_address,
        )
        return self._master_of(registration, data)

    def _check(
        self, registration: Registration, data: BrokerData | None, known: str | None
    ) -> None:
        if not registration.local:
            self._check_foreign(registration, known)
        if data is None and len(self._brokers) >= BROKERS_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{BROKERS_MAX} brokers are registered")
        if known is None and len(registration.topics) == 1:
            name = registration.broker_name
            text = f"broker {name} is unknown and has one topic: it lost its topics"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        new = sum(topic.name not in self._topics for topic in registration.topics)
        if new and len(self._topics) + new > TOPICS_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"more than {TOPICS_MAX} topics")
        if known is None or known == registration.address:
            return
        other = self._live.get(LiveKey(registration.cluster, known))
        if other is not None and other.version.state_version > registration.version.state_version:
            text = f"{registration.broker_name}: {known} is registered with a newer state version"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)

    def _check_foreign(self, registration: Registration, known: str | None) -> None:
        """Refuse what would put another process in the place of the broker of our own."""
        text = ""
        if not 0 <= registration.broker_id <= BROKER_ID_MAX:
            text = f"broker id {registration.broker_id} is not from 0 to {BROKER_ID_MAX}"
        elif (
            max(map(len, (registration.cluster, registration.broker_name, registration.address)))
            > NAME_CHARS_MAX
        ):
            text = f"a name or an address has more than {NAME_CHARS_MAX} characters"
        elif {registration.address, known} & self._local:
            name, address = registration.broker_name, known or registration.address
            text = f"{name} at {address} is the broker of this process"
        if text:
            raise RequestError(ResponseCode.NO_PERMISSION, f"registration refused: {text}")

    @staticmethod
    def _leads(registration: Registration, data: BrokerData) -> bool:
        if registration.broker_id == MASTER_ID:
            return True
        return registration.acting_master is not None and registration.broker_id == min(
            data.addresses
        )

    def _differs(self, key: LiveKey, registration: Registration) -> bool:
        live = self._live.get(key)
        return live is None or live.version != registration.version

    def _take_topics(
        self, registration: Registration, data: BrokerData, *, all_of_them: bool
    ) -> None:
        read_only = registration.broker_id != MASTER_ID and data.acting_master
        for topic in registration.topics:
            brokers = self._topics.setdefault(topic.name, {})
            data.topics.add(topic.name)
            if all_of_them or registration.broker_name not in brokers:
                perm = topic.perm & ~PERM_WRITE if read_only else topic.perm
                brokers[registration.broker_name] = QueueData(
                    topic.read_queues, topic.write_queues, perm, topic.sys_flag
                )

    def _master_of(self, registration: Registration, data: BrokerData) -> Registered:
        master = data.addresses.get(MASTER_ID)
        live = self._live.get(LiveKey(registration.cluster, master)) if master else None
        if registration.broker_id == MASTER_ID or master is None or live is None:
            return Registered()
        return Registered(live.ha_address, master)

    def heard(self, key: LiveKey, now_ms: int) -> bool:
        """Record a heartbeat of a broker; return whether it is registered."""
        live = self._live.get(key)
        if live is not None:
            live.last_ms = now_ms
        return live is not None

    def version_of(self, key: LiveKey) -> DataVersion | None:
        """Return the version of a broker's last registration."""
        live = self._live.get(key)
        return live.version if live else None

    # -- brokers go ---------------------------------------------------------------------------

    def unregister(self, key: LiveKey) -> bool:
        """Drop a broker process; return whether it was registered.

        Source: RouteInfoManager.unRegisterBroker
        """
        live = self._live.pop(key, None)
        if live is None:
            return False
        self._local.discard(key.address)
        data = self._brokers.get(live.broker_name)
        if data is None:
            return True
        for broker_id in [n for n, at in data.addresses.items() if at == key.address]:
            del data.addresses[broker_id]
        if not data.addresses:
            del self._brokers[live.broker_name]
            for topic in data.topics:
                self._drop_queues(lambda name: name == live.broker_name, topic)
        return True

    def address_of(self, broker_name: str, broker_id: int) -> str | None:
        """Return the address of a broker's name and id, None if there is none."""
        data = self._brokers.get(broker_name)
        return data.addresses.get(broker_id) if data is not None else None

    def is_local(self, key: LiveKey) -> bool:
        """Return whether an address is that of the broker of our own process."""
        return key.address in self._local

    def is_known(self, registration: Registration) -> bool:
        """Return whether the process that registers has registered before."""
        return LiveKey(registration.cluster, registration.address) in self._live

    def count_of(self, channel: object) -> int:
        """Return the number of brokers whose last heartbeat came on a connection."""
        return sum(live.channel is channel for live in self._live.values())

    def channel_closed(self, channel: object) -> list[LiveKey]:
        """Drop the brokers last heard on a connection; return them."""
        gone = [key for key, live in self._live.items() if live.channel is channel]
        for key in gone:
            self.unregister(key)
        return gone

    def expire(self, now_ms: int) -> list[Gone]:
        """Drop the brokers that were silent for too long; return them."""
        gone = [
            Gone(key, live.channel)
            for key, live in self._live.items()
            if live.expires_after_ms is not None and now_ms - live.last_ms > live.expires_after_ms
        ]
        for each in gone:
            self.unregister(each.key)
        return gone

    def drop_topic_of(self, broker_name: str, topic: str) -> None:
        """Forget what one broker has of a topic."""
        self._drop_queues(lambda name: name == broker_name, topic)

    def _drop_queues(self, unwanted: Callable[[str], bool], topic: str) -> None:
        brokers = self._topics.get(topic, {})
        for broker_name in [each for each in brokers if unwanted(each)]:
            del brokers[broker_name]
            if (data := self._brokers.get(broker_name)) is not None:
                data.topics.discard(topic)
        if not brokers:
            self._topics.pop(topic, None)

    # -- tools change -------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Delete a topic, in all clusters or in one. 216"""
        if not cluster:
            self._drop_queues(lambda name: True, topic)
            return
        self._drop_queues(lambda name: self._cluster_of(name) == cluster, topic)

    def add_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Add the queues of a topic on registered brokers that lack it. 217

        Raises:
            RequestError: There are too many topics.
        Source: RouteInfoManager.registerTopic
        """
        known = {name: data for name, data in queues.items() if name in self._brokers}
        if len(known) < len(queues) or not known:
            return
        if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"more than {TOPICS_MAX} topics")
        brokers = self._topics.setdefault(topic, {})
        for name, data in known.items():
            brokers.setdefault(name, data)
            self._brokers[name].topics.add(topic)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Allow or forbid writing to all topics of a broker; return their number. 205, 327

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

    # -- questions ----------------------------------------------------------------------------

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return TopicRouteData without an order configuration; None: answer 17.

        Source: RouteInfoManager.pickupTopicRouteData
        """
        brokers = self._topics.get(topic)
        if not brokers:
            return None
        names = sorted(brokers)
        return {
            "brokerDatas": [self._broker_json(name) for name in names],
            "filterServerTable": {},
            "queueDatas": [_queue_json(name, brokers[name]) for name in names],
        }

    def cluster_info(self) -> dict[str, Any]:
        """Return ClusterInfo. 106"""
        return {
            "brokerAddrTable": {name: self._broker_json(name) for name in sorted(self._brokers)},
            "clusterAddrTable": {name: self.brokers_of(name) for name in self.clusters()},
        }

    def member_group(self, cluster: str, broker_name: str) -> dict[str, Any]:
        """Return BrokerMemberGroup. 901"""
        data = self._brokers.get(broker_name)
        mine = data if data is not None and data.cluster == cluster else BrokerData(cluster)
        addresses = {str(n): address for n, address in sorted(mine.addresses.items())}
        return {"brokerAddrs": addresses, "brokerName": broker_name, "cluster": cluster}

    def clusters(self) -> list[str]:
        """Return the cluster names, sorted."""
        return sorted({data.cluster for data in self._brokers.values()})

    def brokers_of(self, cluster: str) -> list[str]:
        """Return the broker names of a cluster, sorted."""
        return sorted(name for name in self._brokers if self._cluster_of(name) == cluster)

    def an_address(self) -> str:
        """Return the address of a broker, the same while it is registered; empty if none is."""
        for name in sorted(self._brokers):
            addresses = self._brokers[name].addresses
            return addresses[min(addresses)]
        return ""

    def topics(self) -> list[str]:
        """Return all topics, sorted. 206"""
        return sorted(self._topics)

    def topics_of(self, cluster: str) -> list[str]:
        """Return the topics that brokers of a cluster have, sorted. 224"""
        names = set(self.brokers_of(cluster))
        return sorted(topic for topic, brokers in self._topics.items() if names & brokers.keys())

    def topics_where(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics with a system flag that is `wanted`, sorted. 311, 312, 313"""
        return sorted(
            topic
            for topic, brokers in self._topics.items()
            if any(wanted(data.sys_flag) for data in brokers.values())
        )

    def live(self) -> Iterator[tuple[LiveKey, Live]]:
        """Yield every broker process that was heard of."""
        yield from self._live.items()

    def _cluster_of(self, broker_name: str) -> str:
        data = self._brokers.get(broker_name)
        return data.cluster if data else ""

    def _broker_json(self, name: str) -> dict[str, Any]:
        data = self._brokers[name]
        return {
            "brokerAddrs": {str(n): address for n, address in sorted(data.addresses.items())},
            "brokerName": name,
            "cluster": data.cluster,
            "enableActingMaster": data.acting_master,
        }


def _queue_json(broker_name: str, data: QueueData) -> dict[str, Any]:
    return {
        "brokerName": broker_name,
        "perm": data.perm,
        "readQueueNums": data.read_queues,
        "topicSysFlag": data.sys_flag,
        "writeQueueNums": data.write_queues,
    }
