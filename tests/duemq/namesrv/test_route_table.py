"""Routes: what registrations, departures and tools do to them, and a model of all of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duemq.namesrv.route_table import (
    BrokerAddrInfo,
    QueueData,
    Registration,
    RegistrationResult,
    RouteTable,
)
from duemq.registry.topic_config import TopicConfig
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from tests.support.extended import examples

TOPICS = [TopicConfig(name="T", read_queues=4, write_queues=4), TopicConfig(name="U")]


def reported(name: str = "a", address: str = "1:1", **changes: Any) -> Registration:
    values: dict[str, Any] = {
        "cluster": "C",
        "broker_name": name,
        "broker_id": 0,
        "address": address,
        "ha_address": f"{address}-ha",
        "version": DataVersion(1),
        "topics": TOPICS,
        "expires_after_ms": 100,
    }
    return Registration(**values | changes)


def table_of(*registrations: Registration) -> RouteTable:
    table = RouteTable()
    for each in registrations:
        table.register(each, 0)
    return table


def addresses(table: RouteTable, topic: str = "T") -> dict[str, dict[str, str]]:
    route = table.route(topic) or {"brokerDatas": []}
    return {data["brokerName"]: data["brokerAddrs"] for data in route["brokerDatas"]}  # type: ignore[attr-defined]


def perms(table: RouteTable, topic: str = "T") -> dict[str, int]:
    route = table.route(topic) or {"queueDatas": []}
    return {data["brokerName"]: data["perm"] for data in route["queueDatas"]}  # type: ignore[attr-defined]


@pytest.mark.finding("3C6")
def test_a_route_has_the_filter_servers_of_its_brokers() -> None:
    table = table_of(
        reported(filter_servers=("grpc://1:8081",)),
        reported(address="1:2", broker_id=1, filter_servers=("grpc://1:8082",)),
        reported("b", "2:1"),
    )
    route = table.route("T")
    assert route is not None
    servers = {"1:1": ("grpc://1:8081",), "1:2": ("grpc://1:8082",)}
    assert route["filterServerTable"] == servers
    table.unregister(BrokerAddrInfo("C", "1:2"))
    table.register(reported(filter_servers=()), 0)
    assert (table.route("T") or {})["filterServerTable"] == {}


# -- registering ----------------------------------------------------------------------------------


def test_a_route_names_brokers_and_queues() -> None:
    assert table_of(reported()).route("T") == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "1:1"},
                "brokerName": "a",
                "cluster": "C",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }


def test_brokers_of_a_topic_are_sorted() -> None:
    table = table_of(reported("b", "2:1"), reported("a", "1:1"))
    assert list(addresses(table)) == ["a", "b"]


def test_topics_of_an_equal_version_are_not_taken_again() -> None:
    table = table_of(reported())
    changed = [TOPICS[0].replace(perm=4), TopicConfig(name="V")]
    table.register(reported(topics=changed), 1)
    assert perms(table) == {"a": 6}
    assert perms(table, "V") == {"a": 6}  # unknown so far: taken whatever the version
    table.register(reported(topics=changed, version=DataVersion(2)), 2)
    assert perms(table) == {"a": 4}


def test_topics_that_a_registration_does_not_hold_stay() -> None:
    table = table_of(reported())
    table.register(reported(topics=[TOPICS[0].replace(perm=4)], version=DataVersion(2)), 1)
    assert table.topics() == ["T", "U"]
    assert perms(table) == {"a": 4}


def test_a_first_registration_with_one_topic_is_refused() -> None:
    table = RouteTable()
    with pytest.raises(RequestError):
        table.register(reported(topics=TOPICS[:1]), 0)
    assert table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_a_slave_brings_no_topics_and_hears_of_its_master() -> None:
    table = table_of(reported())
    response = table.register(
        reported(broker_id=1, address="1:2", topics=[*TOPICS, TopicConfig(name="V")]), 0
    )
    assert response == RegistrationResult("1:1-ha", "1:1")
    assert addresses(table) == {"a": {"0": "1:1", "1": "1:2"}}
    assert table.route("V") is None


def test_a_slave_without_master_hears_nothing() -> None:
    assert RouteTable().register(reported(broker_id=1), 0) == RegistrationResult()


@pytest.mark.parametrize(("acting", "perm"), [(None, None), (False, 6), (True, 4)])
def test_a_lone_slave_of_5_x_brings_topics_read_only_when_it_acts(
    acting: bool | None, perm: int | None
) -> None:
    table = table_of(reported(broker_id=1, acting_master=acting))
    assert perms(table).get("a") == perm


def test_a_slave_that_became_master_leaves_its_old_id() -> None:
    table = table_of(reported(), reported(broker_id=1, address="1:2"))
    table.register(reported(broker_id=0, address="1:2"), 1)
    assert addresses(table) == {"a": {"0": "1:2"}}


def test_a_process_under_a_new_name_leaves_the_old_one() -> None:
    table = table_of(reported("a"), reported("b"))
    assert addresses(table) == {"b": {"0": "1:1"}}
    assert table.brokers_of("C") == ["b"]


def test_an_older_state_version_cannot_take_a_living_brokers_place() -> None:
    table = table_of(reported(version=DataVersion(1, 0, 7)))
    with pytest.raises(RequestError):
        table.register(reported(address="9:9", version=DataVersion(5, 0, 6)), 1)
    assert addresses(table) == {"a": {"0": "1:1"}}


# -- leaving --------------------------------------------------------------------------------------


def test_the_last_address_takes_the_queues_with_it() -> None:
    table = table_of(reported("a", "1:1"), reported("a", "1:2", broker_id=1), reported("b", "2:1"))
    assert table.unregister(BrokerAddrInfo("C", "1:1"))
    assert addresses(table) == {"a": {"1": "1:2"}, "b": {"0": "2:1"}}
    table.unregister(BrokerAddrInfo("C", "1:2"))
    table.unregister(BrokerAddrInfo("C", "2:1"))
    assert table.route("T") is None
    assert table.topics() == []
    assert not table.unregister(BrokerAddrInfo("C", "1:1"))


def test_a_closed_connection_takes_the_brokers_heard_on_it() -> None:
    one, other = object(), object()
    table = table_of(
        reported("a", "1:1", channel=one),
        reported("b", "2:1", channel=one),
        reported("c", "3:1", channel=other),
    )
    table.register(reported("b", "2:1", channel=other), 1)  # reconnected
    assert table.drop_brokers_on(one) == [BrokerAddrInfo("C", "1:1")]
    assert list(addresses(table)) == ["b", "c"]


@pytest.mark.parametrize(
    ("heard_ms", "now_ms", "is_registered"), [(0, 100, True), (0, 101, False), (50, 150, True)]
)
def test_silent_brokers_expire(heard_ms: int, now_ms: int, is_registered: bool) -> None:
    table = table_of(reported())
    assert table.record_heartbeat(BrokerAddrInfo("C", "1:1"), heard_ms)
    gone = table.expire(now_ms)
    assert gone == ([] if is_registered else [BrokerAddrInfo("C", "1:1")])
    assert (table.route("T") is not None) is is_registered


def test_the_broker_in_our_process_never_expires() -> None:
    table = table_of(reported(expires_after_ms=None))
    assert table.expire(1 << 60) == []


def test_an_unknown_broker_is_not_heard() -> None:
    assert not RouteTable().record_heartbeat(BrokerAddrInfo("C", "1:1"), 0)


# -- tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "left"), [("", {}), ("C", {"b": 6}), ("D", {"a": 6}), ("E", {"a": 6, "b": 6})]
)
def test_a_topic_is_deleted_everywhere_or_in_a_cluster(cluster: str, left: dict[str, int]) -> None:
    table = table_of(reported("a", "1:1"), reported("b", "2:1", cluster="D"))
    table.delete_topic("T", cluster)
    assert perms(table) == left
    assert ("T" in table.topics()) is bool(left)


def test_writing_is_wiped_and_allowed_again() -> None:
    table = table_of(reported("a", "1:1"), reported("b", "2:1"))
    assert table.set_writable("a", False) == 2
    assert perms(table) == {"a": 4, "b": 6}
    assert table.set_writable("a", True) == 2
    assert perms(table) == {"a": 6, "b": 6}
    assert table.set_writable("absent", False) == 0


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        ({"a": QueueData(1, 1, 6, 0)}, {"a": 6}),
        ({"absent": QueueData(1, 1, 6, 0)}, {}),
        ({"a": QueueData(1, 1, 6, 0), "absent": QueueData(1, 1, 6, 0)}, {}),
        ({}, {}),
    ],
)
def test_a_topic_is_added_to_known_brokers(
    queues: dict[str, QueueData], expected: dict[str, int]
) -> None:
    table = table_of(reported())
    table.add_topic("New", queues)
    assert perms(table, "New") == expected
    table.add_topic("T", {"a": QueueData(1, 1, 2, 0)})
    assert perms(table) == {"a": 6}  # what is there stays


def test_lists() -> None:
    flagged = [TopicConfig(name=f"F{flag}", sys_flag=flag) for flag in range(4)]
    table = table_of(reported("a", "1:1", topics=flagged), reported("b", "2:1", cluster="D"))
    assert table.clusters() == ["C", "D"]
    assert table.topics() == ["F0", "F1", "F2", "F3", "T", "U"]
    assert table.topics_of("D") == ["T", "U"]
    assert table.topics_where(lambda flag: flag == 2) == ["F2"]
    assert table.first_address() == "1:1"
    assert table.member_group("C", "a")["brokerAddrs"] == {"0": "1:1"}
    assert table.member_group("D", "a")["brokerAddrs"] == {}
    assert RouteTable().first_address() == ""


def test_cluster_info() -> None:
    info = table_of(reported("a", "1:1"), reported("a", "1:2", broker_id=1)).cluster_info()
    assert info["clusterAddrTable"] == {"C": ["a"]}
    assert info["brokerAddrTable"]["a"]["brokerAddrs"] == {"0": "1:1", "1": "1:2"}


# -- the model ------------------------------------------------------------------------------------

CLUSTERS = {"a": "C", "b": "C", "c": "D"}
names = st.sampled_from(sorted(CLUSTERS))
places = st.sampled_from(["1:1", "2:1", "3:1", "4:1"])
channels = st.sampled_from(["x", "y"])


class Model(RuleBasedStateMachine):
    """Flat sets and dictionaries, as in the table; masters and slaves before 5.0 only."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable()
        self.now_ms = 0
        self.addresses: dict[tuple[str, int], str] = {}
        self.queues: dict[tuple[str, str], int] = {}  # topic, name -> perm
        self.live: dict[BrokerAddrInfo, tuple[str, int, int, DataVersion]] = {}
        self.channel: dict[BrokerAddrInfo, str] = {}

    @rule(
        name=names,
        broker_id=st.integers(0, 2),
        address=places,
        counter=st.integers(1, 2),
        topics=st.dictionaries(st.sampled_from("TUV"), st.sampled_from([2, 4, 6])),
        channel=channels,
        timeout_ms=st.sampled_from([50, 100]),
    )
    def register(
        self,
        name: str,
        broker_id: int,
        address: str,
        counter: int,
        topics: dict[str, int],
        channel: str,
        timeout_ms: int,
    ) -> None:
        key, version = BrokerAddrInfo(CLUSTERS[name], address), DataVersion(counter)
        message = Registration(
            cluster=key.cluster,
            broker_name=name,
            broker_id=broker_id,
            address=address,
            ha_address="",
            version=version,
            topics=[TopicConfig(name=topic, perm=perm) for topic, perm in topics.items()],
            channel=channel,
            expires_after_ms=timeout_ms,
        )
        is_new = (name, broker_id) not in self.addresses
        if is_new and len(topics) == 1:
            with pytest.raises(RequestError):
                self.table.register(message, self.now_ms)
            return
        self.table.register(message, self.now_ms)
        if key in self.live and self.live[key][0] != name:
            self._drop(key)
        differs = key not in self.live or self.live[key][3] != version
        for other in [k for k, v in self.addresses.items() if k[0] == name and v == address]:
            del self.addresses[other]
        self.addresses[name, broker_id] = address
        for topic, perm in topics.items():
            if broker_id == 0 and (is_new or differs or (topic, name) not in self.queues):
                self.queues[topic, name] = perm
        self.live[key] = (name, self.now_ms, timeout_ms, version)
        self.channel[key] = channel

    @rule(name=names, address=places)
    def unregister(self, name: str, address: str) -> None:
        key = BrokerAddrInfo(CLUSTERS[name], address)
        assert self.table.unregister(key) is (key in self.live)
        self._drop(key)

    @rule(channel=channels)
    def close(self, channel: str) -> None:
        gone = {key for key, heard_on in self.channel.items() if heard_on == channel}
        assert set(self.table.drop_brokers_on(channel)) == gone
        for key in gone:
            self._drop(key)

    @rule(step_ms=st.integers(0, 70))
    def expire(self, step_ms: int) -> None:
        self.now_ms += step_ms
        gone = {k for k, (_, at, limit, _) in self.live.items() if self.now_ms - at > limit}
        assert set(self.table.expire(self.now_ms)) == gone
        for key in gone:
            self._drop(key)

    @rule(name=names, address=places)
    def hear(self, name: str, address: str) -> None:
        key = BrokerAddrInfo(CLUSTERS[name], address)
        assert self.table.record_heartbeat(key, self.now_ms) is (key in self.live)
        if key in self.live:
            broker, _, limit, version = self.live[key]
            self.live[key] = (broker, self.now_ms, limit, version)

    @rule(topic=st.sampled_from("TUV"), cluster=st.sampled_from(["", "C", "D"]))
    def delete_topic(self, topic: str, cluster: str) -> None:
        self.table.delete_topic(topic, cluster)
        for each in list(self.queues):
            if each[0] == topic and cluster in ("", CLUSTERS[each[1]]):
                del self.queues[each]

    @rule(name=names, writable=st.booleans())
    def set_writable(self, name: str, writable: bool) -> None:
        mine = [each for each in self.queues if each[1] == name]
        assert self.table.set_writable(name, writable) == len(mine)
        for each in mine:
            self.queues[each] = 6 if writable else self.queues[each] & ~2

    def _drop(self, key: BrokerAddrInfo) -> None:
        if key not in self.live:
            return
        name = self.live.pop(key)[0]
        del self.channel[key]
        for other in [k for k, v in self.addresses.items() if k[0] == name and v == key.address]:
            del self.addresses[other]
        if name not in {each for each, _ in self.addresses}:
            for each in [each for each in self.queues if each[1] == name]:
                del self.queues[each]

    @invariant()
    def agrees(self) -> None:
        assert self.table.topics() == sorted({topic for topic, _ in self.queues})
        for topic in "TUV":
            expected = {name: perm for (each, name), perm in self.queues.items() if each == topic}
            assert perms(self.table, topic) == expected
            for name, ids in addresses(self.table, topic).items():
                mine = {str(n): at for (each, n), at in self.addresses.items() if each == name}
                assert ids == mine != {}
        for name, cluster in CLUSTERS.items():
            assert (name in self.table.brokers_of(cluster)) is (
                name in {each for each, _ in self.addresses}
            )


Model.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestModel = Model.TestCase
